"""What can be said of a sample (README.md)."""
OK = "ok"
AS_AOT = "as aot"
WRONG = "wrong"
CRASH = "crash"
HANG = "hang"
ERROR = "error"
FALLBACK = "fallback"
NOT_CAPTURED = "not captured"
REFUSED = "refused"
SKIPPED = "skipped"
ALL = (OK, AS_AOT, WRONG, CRASH, HANG, ERROR, FALLBACK, NOT_CAPTURED, REFUSED, SKIPPED)
BAD = (WRONG, CRASH, HANG, ERROR, FALLBACK)
