// Package zmtp tests penstock/internal/zmtp with libzmq in both directions: every pair of compatible sockets,
// either side dialing, sizes from zero to 8 MiB, heartbeats, restarts, stopped peers. The libzmq side is
// peer.py, which executes commands; ../zmtp.sh installs what it needs and runs the tests once for each libzmq
// it found.
package zmtp
