"""Reading shell without running it: words, grammar, and what can be known of a variable's value.

Only what a check of batch scripts needs of bash; what cannot be read is said (`Unreadable`), never guessed.
"""
