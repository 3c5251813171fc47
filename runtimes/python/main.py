# Starts the wrapper. This file is this small because Python compiles the one it is started with every time.
import klambda

klambda.main()
