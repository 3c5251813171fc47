module klambda

go 1.21
