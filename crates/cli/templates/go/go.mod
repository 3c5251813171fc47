module function

go 1.21
