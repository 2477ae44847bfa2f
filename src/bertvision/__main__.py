"""python -m bertvision"""

from bertvision.cli import main

if __name__ == "__main__":
    main()
