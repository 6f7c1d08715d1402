// Command zmtp measures how fast a subscriber receives messages over ZeroMQ: our penstock/internal/zmtp
// beside libzmq through cgo (github.com/pebbe/zmq4), from the same publisher, in the same run. Publisher and
// subscriber are separate processes, over the loopback interface; every message has three parts, as engines
// publish events (topic, number, payload), every number is checked, and a lost message is an error. The
// publisher is libzmq's XPUB, which blocks when its queue is full, and then our Pub.
//
// It prints its figures in the format of "go test -bench", for tools/benchjson; tools/bench/zmtp.sh installs
// what it needs and runs it.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

func main() {
	role := flag.String("role", "", "publish or subscribe; empty runs both, as processes of their own")
	kind := flag.String("kind", "penstock", "penstock or libzmq")
	addr := flag.String("addr", "", "where the publisher is")
	size := flag.Int("size", 200, "bytes of a payload")
	count := flag.Int("count", 0, "messages of one measurement; 0 has as many as take about a second")
	sizes := flag.String("sizes", "200,2000,20000", "sizes of a whole run")
	rounds := flag.Int("rounds", 5, "measurements of each, taken in turns; their median counts")
	flag.Parse()
	if err := run(*role, *kind, *addr, *size, *count, *sizes, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench/zmtp:", err)
		os.Exit(1)
	}
}

func run(role, kind, addr string, size, count int, sizes string, rounds int) error {
	switch role {
	case "publish":
		return publish(kind, size, count)
	case "subscribe":
		return subscribe(kind, addr, size, count)
	}
	fmt.Println("pkg: penstock/bench/zmtp")
	fmt.Println("cpu:", cpu())
	for _, publisher := range []string{"libzmq", "penstock"} {
		for s := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(s)
			if err != nil {
				return err
			}
			if err := compare(publisher, n, count, rounds); err != nil {
				return fmt.Errorf("%s, %d bytes: %w", publisher, n, err)
			}
		}
	}
	return nil
}

// compareSubscribers measures both subscribers in turns, and prints the median of each and their ratio.
func compare(publisher string, size, count, rounds int) error {
	if count == 0 {
		count = min(500_000, 1_500_000_000/size)
	}
	got := map[string][]result{}
	for range rounds {
		for _, subscriber := range []string{"libzmq", "penstock"} {
			r, err := measure(publisher, subscriber, size, count)
			if err != nil {
				return err
			}
			got[subscriber] = append(got[subscriber], r)
		}
	}
	name := fmt.Sprintf("publisher=%s/size=%d", publisher, size)
	ours, theirs := median(got["penstock"]), median(got["libzmq"])
	theirs.print(name + "/subscriber=libzmq")
	ours.print(name + "/subscriber=penstock")
	fmt.Printf("Benchmark%s/penstock-to-libzmq 1 %.2f rate-ratio %.2f cpu-ratio\n", name, ours.rate()/theirs.rate(), ours.cpu()/theirs.cpu())
	return nil
}

func median(r []result) result {
	slices.SortFunc(r, func(a, b result) int { return int(a.Took - b.Took) })
	return r[len(r)/2]
}

// measureOnce runs one publishing and one subscribing process.
func measure(publisher, subscriber string, size, count int) (result, error) {
	common := []string{"-size", strconv.Itoa(size), "-count", strconv.Itoa(count)}
	pub := command(append(common, "-role", "publish", "-kind", publisher))
	in, err := pub.StdinPipe()
	if err != nil {
		return result{}, err
	}
	out, err := pub.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := pub.Start(); err != nil {
		return result{}, err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return result{}, errors.Join(err, in.Close(), pub.Wait())
	}
	got, err := command(append(common, "-role", "subscribe", "-kind", subscriber, "-addr", strings.TrimSpace(addr))).Output()
	if err != nil {
		return result{}, errors.Join(err, in.Close(), pub.Process.Kill(), pub.Wait())
	}
	if err := errors.Join(in.Close(), pub.Wait()); err != nil { // it ends when its input does
		return result{}, err
	}
	var r result
	return r, json.Unmarshal(got, &r)
}

func command(args []string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Stderr = os.Stderr
	return c
}

// awaitEnd returns when the parent closes standard input.
func awaitEnd() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func cpu() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(info), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	_, name, _ := strings.Cut(line, ": ")
	return name
}
