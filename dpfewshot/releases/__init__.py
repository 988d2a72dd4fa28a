"""Releases besides demonstrations, each paid for before it is drawn: labels, choices, calibrations."""
