.PHONY: setup
setup:
	@scripts/setup
