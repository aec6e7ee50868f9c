"""`python -m secagg` is the `secagg` command."""

from secagg.cli import main

raise SystemExit(main())
