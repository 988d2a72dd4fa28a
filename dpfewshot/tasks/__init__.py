"""Tasks: what a demonstration is made of, and how its text is written. All of it is public."""

from dpfewshot.tasks.task import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC, Task, by_name

__all__ = ["AGNEWS", "DBPEDIA", "MIT_D", "MIT_G", "TREC", "Task", "by_name"]
