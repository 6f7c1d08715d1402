// Command rpc measures streams of token deltas over the request plane's TCP beside grpc-go: one process
// serves, another calls, over the loopback interface, with the same frames on both. It prints its figures in
// the format of "go test -bench", for tools/benchjson; tools/bench/rpc.sh runs it.
//
// There are two loads. In "flood" each stream sends at full speed: tokens/s is the capacity of a connection, and
// latency only tells how long the queues are which the windows of flow control allow. In "paced" each sends 25 tokens a second, as engines do: the latency from send to receive is that of the
// transport, not of a queue.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
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
	plane := flag.String("plane", "", "tcp or grpc; empty measures both, and their ratios")
	load := flag.String("load", "", "flood or paced; empty measures both")
	addr := flag.String("addr", "", "where to call")
	streams := flag.String("streams", "1,100,1000,10000", "how many streams; several for a whole run")
	window := flag.Duration("for", 3*time.Second, "how long to measure, after a time that is not counted")
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
		says := json.NewEncoder(os.Stdout)
		got, err := runCaller(c, addr, func() error { return says.Encode("mark") })
		if err != nil {
			return err
		}
		return says.Encode(got)
	}
	fmt.Println("pkg: penstock/bench/rpc")
	fmt.Println("cpu:", processorName())
	for _, load := range chosenNames(c.Load, "flood", "paced") {
		for _, n := range counts {
			both := map[string]cellResult{}
			for _, plane := range chosenNames(c.Plane, "grpc", "tcp") {
				c.Plane, c.Streams, c.Load = plane, n, load
				got, err := measureCell(c)
				if err != nil {
					return fmt.Errorf("%s, %d streams, %s: %w", plane, n, load, err)
				}
				both[plane] = got
				got.printBenchLine(fmt.Sprintf("load=%s/streams=%d/plane=%s", load, n, plane))
			}
			if len(both) == 2 {
				printRatios(fmt.Sprintf("load=%s/streams=%d/tcp-to-grpc", load, n), c, both["tcp"], both["grpc"])
			}
		}
	}
	return nil
}

// chosenNames returns all names if chosen is empty.
func chosenNames(chosen string, all ...string) []string {
	if chosen == "" {
		return all
	}
	return []string{chosen}
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
	fromServer := json.NewDecoder(out)
	var addr string
	if err := fromServer.Decode(&addr); err != nil {
		return cellResult{}, fmt.Errorf("the server's address: %w", err)
	}
	client := exec.Command(self, "-role", "call", "-plane", c.Plane, "-load", c.Load,
		"-streams", strconv.Itoa(c.Streams), "-for", c.For.String(), "-addr", addr)
	client.Stderr = os.Stderr
	text, err := client.StdoutPipe()
	if err != nil {
		return cellResult{}, err
	}
	if err := client.Start(); err != nil {
		return cellResult{}, err
	}
	r, err := relayMarks(json.NewDecoder(text), in, fromServer)
	in.Close() // the server ends
	return r, errors.Join(err, client.Wait(), server.Wait())
}

// relayMarks asks the server what it has used at each mark of the client, and returns the client's result with what
// the server used between the two.
func relayMarks(client *json.Decoder, server io.Writer, fromServer *json.Decoder) (r cellResult, err error) {
	var used [2]resourceUse
	for i := range used {
		var mark string
		if err := client.Decode(&mark); err != nil {
			return r, fmt.Errorf("the client's mark: %w", err)
		}
		if _, err := io.WriteString(server, "\n"); err != nil {
			return r, err
		}
		if err := fromServer.Decode(&used[i]); err != nil {
			return r, fmt.Errorf("what the server used: %w", err)
		}
	}
	if err := client.Decode(&r); err != nil {
		return r, fmt.Errorf("the client's result: %w", err)
	}
	r.Server = used[1].subtractUsage(used[0])
	return r, nil
}

// printRatios prints a as multiples of b: throughput and CPU in a flood, latency at an engine's pace. In a flood
// latency is the length of the queues which each transport's windows allow, so that it compares nothing.
func printRatios(name string, c benchCell, a, b cellResult) {
	cpu := func(r cellResult) float64 {
		return float64(r.Client.CPU)/float64(r.Client.Tokens) + float64(r.Server.CPU)/float64(r.Server.Tokens)
	}
	fmt.Printf("Benchmark%s-%d 1 %.3f cpu-ratio", name, runtime.NumCPU(), cpu(a)/cpu(b))
	if c.Load == "flood" {
		fmt.Printf(" %.2f tokens/s-ratio\n", a.tokenRate()/b.tokenRate())
		return
	}
	fmt.Printf(" %.4f p50-ratio %.4f p99-ratio\n", a.P50/b.P50, a.P99/b.P99)
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
