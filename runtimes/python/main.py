# Starts the wrapper. This file is small because Python compiles the main file at every start.
import klambda

klambda.main()
