"""`python -m secagg` runs the `secagg` command."""

from secagg.cli.main import main

raise SystemExit(main())
