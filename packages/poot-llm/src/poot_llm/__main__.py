"""``python -m poot_llm`` is the ``poot`` command."""

from poot_llm.cli import main

if __name__ == "__main__":
    main()
