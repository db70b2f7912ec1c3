print("not run: coding agents")
