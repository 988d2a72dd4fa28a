"""Other people's accounting: the papers' own formulas, and independent libraries beside ours."""
