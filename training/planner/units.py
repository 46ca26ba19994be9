"""Bytes and seconds as people read them."""


def gibibytes(num_bytes: float) -> str:
    """Returns bytes in the unit that fits: "1.50 GiB", "12.0 MiB", "3.2 KiB"."""
    for unit, size, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 1)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.{digits}f} {unit}"
    return f"{num_bytes:,.0f} B"


def milliseconds(seconds: float) -> str:
    """Returns seconds in the unit that fits: "12.3 ms", "45.6 µs"."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{1e3 * seconds:,.2f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:,.2f} µs"
