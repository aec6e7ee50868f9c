from fl.cli import main

raise SystemExit(main())
