"""Is a candidate as good as the stable version: summaries of answers, and tests that hold while one looks on."""
