"""`python -m secagg` is the `secagg` command."""

from secagg.cli.main import main

raise SystemExit(main())
