"""Made-up clinical notes of several lines, for bench/long.py: 5,000 of each of two specialties.

Nobody in them exists: people have an age and a fictitious patient number, `PN-` and seven digits, which stands for
what must stay secret. As with real notes, those of one specialty share their headings and many phrases, and differ
in their details. A note has 90 to 240 words, which are 150 to 400 tokens of Gemma and of Qwen.
"""

from __future__ import annotations

import dataclasses
import random
import re

import dpfewshot as dpf

NOTES_PER_LABEL = 5_000

NOTES = dpf.Task(
    name="notes",
    instruction="Given a medical specialty, write a clinical note of that specialty.",
    label_field="Specialty",
    text_field="Note",
    labels=("Cardiology", "Orthopedics"),
    multiline=True,
)

FORMED_NOTES = dataclasses.replace(
    NOTES,
    instruction=(
        "Given a medical specialty, write a clinical note of that specialty with the lines Reason for visit, "
        "History, Medication, Examination, Findings, Assessment and Plan."
    ),
)
"""The same with the form of the notes, which is public, in the instruction."""

PATIENT_NUMBER = re.compile(r"\bPN-\d{7}\b")
_FEWEST_WORDS, _MOST_WORDS = 90, 240


def notes(number: int = NOTES_PER_LABEL, *, seed: int = 1) -> list[dpf.Record]:
    """So many notes of each specialty, in turns."""
    draw = random.Random(seed)
    return [dpf.Record(_note(draw, label), label) for _ in range(number) for label in NOTES.labels or ()]


def _note(draw: random.Random, label: str) -> str:
    while True:
        details = {slot: draw.choice(_SLOTS[slot]) for slot in _OF_A_NOTE}
        lines = [_line(draw, heading, pools[label], details) for heading, pools in _SECTIONS.items()]
        note = "\n".join(lines)
        if _FEWEST_WORDS <= len(note.split()) <= _MOST_WORDS:
            return note


def _line(draw: random.Random, heading: str, pool: _Pool, details: dict[str, str]) -> str:
    """A heading, a sentence of the pool's first group and some of its second."""
    first, others = pool
    sentences = [draw.choice(first), *draw.sample(others, draw.randint(0, len(others)))]
    filled = (re.sub(r"\{(\w+)\}", lambda slot: _fill(draw, slot[1], details), one) for one in sentences)
    return f"{heading}: {' '.join(one[0].upper() + one[1:] for one in filled)}"


def _fill(draw: random.Random, slot: str, details: dict[str, str]) -> str:
    if slot in _NUMBERS:
        return str(draw.randint(*_NUMBERS[slot]))
    return details[slot] if slot in details else draw.choice(_SLOTS[slot])


_Pool = tuple[tuple[str, ...], tuple[str, ...]]

_OF_A_NOTE = ("side", "joint", "bone", "heart")
"""Slots that a note fills the same way throughout."""

_NUMBERS = {
    "age": (34, 91),
    "number": (1_000_000, 9_999_999),
    "systolic": (104, 178),
    "diastolic": (58, 99),
    "pulse": (48, 118),
    "saturation": (90, 99),
    "weight": (51, 118),
    "fraction": (28, 65),
    "degrees": (40, 125),
    "years": (2, 25),
    "packs": (5, 45),
    "few": (2, 8),
    "pain": (3, 9),
    "creatinine": (60, 160),
}

_SLOTS: dict[str, tuple[str, ...]] = {
    "person": ("man", "woman"),
    "side": ("left", "right"),
    "span": ("two days", "three days", "one week", "two weeks", "three weeks", "two months", "half a year"),
    "when": ("in the morning", "in the evening", "at night", "after meals", "on climbing stairs", "at rest"),
    "work": ("teacher", "bricklayer", "nurse", "gardener", "driver", "cook", "retired clerk", "farmer"),
    "home": ("alone", "with a partner", "with family", "in sheltered housing"),
    "allergy": ("penicillin", "latex", "iodine contrast", "ibuprofen", "codeine", "plasters"),
    "hypotensive": ("ramipril 5 mg", "candesartan 8 mg", "amlodipine 5 mg", "lisinopril 10 mg"),
    "blocker": ("bisoprolol 2.5 mg", "metoprolol 47.5 mg", "nebivolol 5 mg", "carvedilol 6.25 mg"),
    "statin": ("atorvastatin 40 mg", "simvastatin 20 mg", "rosuvastatin 10 mg"),
    "diuretic": ("torasemide 10 mg", "furosemide 40 mg", "hydrochlorothiazide 12.5 mg", "spironolactone 25 mg"),
    "anticoagulant": ("apixaban 5 mg twice daily", "rivaroxaban 20 mg", "edoxaban 60 mg"),
    "painkiller": ("ibuprofen 400 mg", "paracetamol 1 g", "naproxen 500 mg", "diclofenac gel", "metamizole 500 mg"),
    "illness": (
        "arterial hypertension", "type 2 diabetes", "hypothyroidism", "asthma", "chronic kidney disease",
        "hypercholesterolemia", "gout", "migraine", "reflux disease",
    ),
    "symptom": (
        "chest pain on exertion", "shortness of breath", "palpitations", "dizziness", "swelling of both legs",
        "a feeling of pressure behind the breastbone", "reduced exercise tolerance",
    ),
    "rhythm": ("sinus rhythm", "atrial fibrillation", "sinus rhythm with single extrasystoles", "a paced rhythm"),
    "valve": ("mild mitral regurgitation", "moderate aortic stenosis", "mild tricuspid regurgitation", "no valve defect"),
    "heart": (
        "stable angina pectoris", "paroxysmal atrial fibrillation", "chronic heart failure",
        "coronary artery disease without acute ischemia", "hypertensive heart disease", "aortic stenosis",
    ),
    "test": ("a stress echocardiogram", "a coronary CT", "a 24-hour ECG", "a 24-hour blood pressure recording"),
    "joint": ("knee", "hip", "shoulder", "ankle", "wrist", "elbow"),
    "cause": ("a fall on ice", "a fall from a bicycle", "heavy lifting", "a game of football", "no injury", "a long hike"),
    "sign": ("slight effusion", "no effusion", "local warmth", "tenderness over the joint line", "mild swelling"),
    "image": (
        "narrowing of the joint space", "no fracture", "a nondisplaced fracture", "osteophytes",
        "a partial tendon tear", "a meniscus lesion", "calcification of the tendon",
    ),
    "bone": (
        "osteoarthritis", "a meniscus lesion", "tendinopathy", "a sprain", "bursitis", "a contusion without fracture",
        "impingement",
    ),
    "aid": ("a brace", "forearm crutches", "an elastic bandage", "a sling", "insoles"),
    "surgery": ("arthroscopy", "joint replacement", "a steroid injection", "open repair"),
}  # fmt: skip

_OPENING = (
    "{age}-year-old {person}, patient number PN-{number}, presents with ",
    "{age}-year-old {person} (PN-{number}) is seen for ",
)
_SOCIAL = (
    "Works as a {work} and lives {home}.", "Former smoker, {packs} pack-years.", "Never smoked.", "No alcohol.",
    "Known {illness} for {years} years.", "Also {illness}.", "Allergic to {allergy}.",
)  # fmt: skip
_SIGNS = (
    "Alert and oriented, in no acute distress.", "Weight {weight} kg.", "Temperature normal.",
    "No focal neurological deficit.", "Abdomen soft and not tender.",
)  # fmt: skip
_RETURN = (
    "The patient understands the plan and agrees.", "Return at once if the symptoms worsen.",
    "Written information was given.", "The family doctor receives a copy of this note.",
    "Sick leave for {few} days.",
)  # fmt: skip

_SECTIONS: dict[str, dict[str, _Pool]] = {
    "Reason for visit": {
        "Cardiology": (
            tuple(opening + "{symptom} for {span}." for opening in _OPENING),
            (
                "The symptoms occur mostly {when}.", "The episodes last about {few} minutes.", "There was no loss of consciousness.",
                "The patient also reports {symptom}.",
            ),
        ),
        "Orthopedics": (
            tuple(opening + "pain in the {side} {joint} for {span} after {cause}." for opening in _OPENING),
            (
                "The pain is worst {when}.", "On a scale of ten it is {pain}.", "There is no numbness.",
                "The patient also reports stiffness {when}.",
            ),
        ),
    },
    "History": {
        "Cardiology": (
            ("Known {illness} for {years} years.", "History of {heart}.", "No previous cardiac disease."),
            (*_SOCIAL, "Coronary stent {years} years ago.", "A parent had a heart attack."),
        ),
        "Orthopedics": (
            ("No previous injury of the {joint}.", "{surgery} of the {side} {joint} {years} years ago.", "Known {bone} of the {joint}."),
            (*_SOCIAL, "Regular sport until {span} ago.", "No fever or weight loss."),
        ),
    },
    "Medication": {
        "Cardiology": (
            ("{hypotensive} once daily.", "{blocker} once daily.", "Aspirin 100 mg once daily."),
            ("{statin} at night.", "{diuretic} in the morning.", "{anticoagulant}.", "Metformin 1000 mg twice daily."),
        ),
        "Orthopedics": (
            ("{painkiller} as needed.", "No regular medication.", "{hypotensive} once daily."),
            ("Pantoprazole 20 mg once daily.", "{painkiller} up to three times daily.", "Vitamin D 1000 units."),
        ),
    },
    "Examination": {
        "Cardiology": (
            ("Blood pressure {systolic}/{diastolic} mmHg, pulse {pulse} per minute.",),
            (
                *_SIGNS, "Oxygen saturation {saturation} percent on room air.", "Heart sounds regular, no murmur.",
                "Systolic murmur over the aortic area.", "Lungs clear on both sides.", "Mild edema of the ankles.",
            ),
        ),
        "Orthopedics": (
            ("The {side} {joint} shows {sign}, range of motion up to {degrees} degrees.",),
            (
                *_SIGNS, "Ligaments stable.", "Circulation, sensation and motor function are intact.",
                "Pain on rotation.", "Gait slightly limping.", "There is {sign}.",
            ),
        ),
    },
    "Findings": {
        "Cardiology": (
            ("ECG: {rhythm}, rate {pulse} per minute.",),
            (
                "No ST segment changes.", "Echocardiogram: ejection fraction {fraction} percent, {valve}.",
                "Troponin negative.", "Creatinine {creatinine} micromoles per liter.", "Chest X-ray without congestion.",
            ),
        ),
        "Orthopedics": (
            ("X-ray of the {side} {joint}: {image}.", "MRI of the {side} {joint}: {image}."),
            ("Ultrasound: {sign}.", "No loose body.", "Blood tests normal.", "Bone density not measured."),
        ),
    },
    "Assessment": {
        "Cardiology": (("{heart}.", "Most likely {heart}."), ("No sign of an acute coronary syndrome.", "Clinically stable.")),
        "Orthopedics": (("{bone} of the {joint}.", "Most likely {bone}."), ("No sign of infection.", "No indication for surgery at present.")),
    },
    "Plan": {
        "Cardiology": (
            ("Start {blocker} once daily.", "Continue the present medication.", "Increase {hypotensive} to twice daily."),
            (*_RETURN, "Arrange {test}.", "Check electrolytes in {few} weeks.", "Follow-up in {few} weeks."),
        ),
        "Orthopedics": (
            ("Physiotherapy twice a week for {few} weeks.", "Rest and {painkiller} for {few} days.", "Protect the {joint} with {aid}."),
            (*_RETURN, "Consider {surgery} if there is no improvement.", "Follow-up in {few} weeks."),
        ),
    },
}  # fmt: skip
