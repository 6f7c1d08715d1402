// Command rpc measures streams of token deltas over the request plane's TCP beside grpc-go: one process
// serves, another calls, over the loopback interface, with the same frames on both. It prints its figures in
// the format of "go test -bench", for tools/benchjson; tools/bench/rpc.sh runs it.
//
// There are two loads. In "flood" each stream sends at full speed: tokens/s is the capacity of a connection.
// In "paced" each sends 25 tokens a second, as engines do: the latency from send to receive is that of the
// transport, not of a queue.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// benchCell is one measurement.
type benchCell struct {
	Plane   string
	Streams int
	Load    string
	For     time.Duration
}

func main() {
	role := flag.String("role", "", "serve or call; empty runs both, as processes of their own")
	plane := flag.String("plane", "tcp", "tcp or grpc")
	load := flag.String("load", "flood", "flood or paced")
	addr := flag.String("addr", "", "where to call")
	streams := flag.String("streams", "1,100,1000,10000", "how many streams; several for a whole run")
	window := flag.Duration("for", 1500*time.Millisecond, "how long to measure, after a time that is not counted")
	flag.Parse()
	if err := runBench(*role, *addr, *streams, benchCell{Plane: *plane, Load: *load, For: *window}); err != nil {
		fmt.Fprintln(os.Stderr, "bench/rpc:", err)
		os.Exit(1)
	}
}

func runBench(role, addr, streams string, c benchCell) error {
	if role == "serve" {
		return runServer(c)
	}
	var counts []int
	for _, s := range strings.Split(streams, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		counts = append(counts, n)
	}
	if role == "call" {
		c.Streams = counts[0]
		got, err := runCaller(c, addr)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	}
	fmt.Println("pkg: penstock/bench/rpc")
	fmt.Println("cpu:", processorName())
	for _, load := range []string{"flood", "paced"} {
		for _, n := range counts {
			both := map[string]cellResult{}
			for _, plane := range []string{"grpc", "tcp"} {
				got, err := measureCell(benchCell{Plane: plane, Streams: n, Load: load, For: c.For})
				if err != nil {
					return fmt.Errorf("%s, %d streams, %s: %w", plane, n, load, err)
				}
				both[plane] = got
				got.printBenchLine(fmt.Sprintf("load=%s/streams=%d/plane=%s", load, n, plane))
			}
			printRatios(fmt.Sprintf("load=%s/streams=%d/tcp-to-grpc", load, n), both["tcp"], both["grpc"])
		}
	}
	return nil
}

// measureCell starts both processes for one cell.
func measureCell(c benchCell) (cellResult, error) {
	self, err := os.Executable()
	if err != nil {
		return cellResult{}, err
	}
	server := exec.Command(self, "-role", "serve", "-plane", c.Plane, "-load", c.Load)
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		return cellResult{}, err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return cellResult{}, err
	}
	if err := server.Start(); err != nil {
		return cellResult{}, err
	}
	says := json.NewDecoder(out)
	var addr string
	if err := says.Decode(&addr); err != nil {
		return cellResult{}, fmt.Errorf("the server's address: %w", err)
	}
	client := exec.Command(self, "-role", "call", "-plane", c.Plane, "-load", c.Load,
		"-streams", strconv.Itoa(c.Streams), "-for", c.For.String(), "-addr", addr)
	client.Stderr = os.Stderr
	text, callErr := client.Output()
	in.Close() // the server prints its resource use, and ends
	var r cellResult
	if callErr == nil {
		callErr = json.Unmarshal(text, &r)
	}
	used := says.Decode(&r.Server)
	if err := server.Wait(); err != nil {
		return r, err
	}
	if callErr != nil {
		return r, callErr
	}
	return r, used
}

// printRatios prints a as multiples of b, unless one transferred nothing in time.
func printRatios(name string, a, b cellResult) {
	if a.Tokens == 0 || b.Tokens == 0 {
		fmt.Fprintf(os.Stderr, "%s: %d and %d tokens came; nothing to compare\n", name, a.Tokens, b.Tokens)
		return
	}
	fmt.Printf("Benchmark%s-%d 1 %.2f tokens/s-ratio %.4f p50-ratio %.4f p99-ratio\n",
		name, runtime.NumCPU(), a.tokenRate()/b.tokenRate(), a.P50/b.P50, a.P99/b.P99)
}

// processorName returns the name of the processor.
func processorName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return runtime.GOARCH
}
