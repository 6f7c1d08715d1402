module penstock/bench/zmtp

go 1.26.0

require (
	github.com/pebbe/zmq4 v1.4.0
	penstock v0.0.0
)

replace penstock => ../..
