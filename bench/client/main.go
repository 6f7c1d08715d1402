// Command client measures the load generator of "penstock bench" itself: its highest rates against a nearly
// free server, beside wrk with the same requests, and the error of its timestamps. Server and clients are
// separate processes on this machine. It prints its figures in the format of "go test -bench", for
// tools/benchjson; tools/bench/client.sh runs it.
//
// The true times come from the server: it records, on the machine's monotonic clock, the time before it
// writes each token.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"time"
)

type clientSettings struct {
	connections int
	streams     int
	window      time.Duration
	pace        time.Duration
	wrk         string
	only        string
}

func main() {
	var s clientSettings
	role := flag.String("role", "", "serve, or empty for all")
	flag.IntVar(&s.connections, "connections", 64, "connections of the tests of the ceiling")
	flag.IntVar(&s.streams, "streams", 200, "streams of the test of the moments")
	flag.DurationVar(&s.window, "for", 4*time.Second, "how long each test takes")
	flag.DurationVar(&s.pace, "pace", 25*time.Millisecond, "time between the tokens of a stream in the test of the moments")
	flag.StringVar(&s.wrk, "wrk", "wrk", "the program wrk; empty leaves it out")
	flag.StringVar(&s.only, "only", "", "requests, tokens or moments; empty is all")
	flag.Parse()
	run := func() error { return measureAll(s) }
	if *role == "serve" {
		run = func() error { return runServer(s.pace) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/client:", err)
		os.Exit(1)
	}
}

// measureAll starts the server and runs all tests.
func measureAll(s clientSettings) error {
	url, stop, err := startServer(s.pace)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Println("pkg: penstock/bench/client")
	ctx := context.Background()
	for _, test := range []struct {
		name string
		run  func(ctx context.Context, url string, s clientSettings) error
	}{{"requests", measureRequestRate}, {"tokens", measureTokenRate}, {"moments", measureTimestamps}} {
		if s.only != "" && s.only != test.name {
			continue
		}
		if err := test.run(ctx, url, s); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts this program as the server and returns its URL.
func startServer(pace time.Duration) (url string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "-role", "serve", "-pace", pace.String())
	cmd.Stderr = os.Stderr
	until, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	says, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = until.Close() // the server ends with its input
		_ = cmd.Wait()
	}
	if err := json.NewDecoder(says).Decode(&url); err != nil {
		stop()
		return "", nil, fmt.Errorf("server: %w", err)
	}
	return url, stop, nil
}
