"""Tasks: what a demonstration is made of, and how its text is written. All of it is public."""

from dpfewshot.tasks.built_in import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC, by_name
from dpfewshot.tasks.task import Task

__all__ = ["AGNEWS", "DBPEDIA", "MIT_D", "MIT_G", "TREC", "Task", "by_name"]
