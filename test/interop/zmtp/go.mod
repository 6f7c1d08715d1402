module penstock/test/interop/zmtp

go 1.26.0

require penstock v0.0.0

replace penstock => ../../..
