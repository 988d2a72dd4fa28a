"""What the interpreter and the operating system must not leak or share: tracebacks and forked locks."""
