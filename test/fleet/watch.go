package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Metrics are the samples of one read of /metrics.
type Metrics []Sample

// Sample is one line: name, labels as written (without braces), value.
type Sample struct {
	Name, Labels string
	Value        float64
}

// SumOf adds up the samples of a name whose labels contain all the given texts, such as `quantity="running"`.
func (m Metrics) SumOf(name string, labels ...string) float64 {
	sum := 0.0
next:
	for _, s := range m {
		if s.Name != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(s.Labels, l) {
				continue next
			}
		}
		sum += s.Value
	}
	return sum
}

// parseMetrics reads the samples of the Prometheus text format.
func parseMetrics(r io.Reader) (Metrics, error) {
	var m Metrics
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %q: %w", line, err)
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		m = append(m, Sample{Name: name, Labels: strings.TrimSuffix(labels, "}"), Value: v})
	}
	return m, lines.Err()
}

// lookTimeout bounds every query of a process.
const lookTimeout = 5 * time.Second

// newLookClient returns a client for queries: a connection each, since the processes die and are paused.
func newLookClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: lookTimeout}
}

// ReadMetrics returns /metrics of the process at url.
func ReadMetrics(ctx context.Context, url string) (Metrics, error) {
	m, _, err := ReadMetricsSized(ctx, url)
	return m, err
}

// ReadMetricsSized is ReadMetrics with the size in bytes.
func ReadMetricsSized(ctx context.Context, url string) (m Metrics, bytes int, err error) {
	err = getPage(ctx, url+"/metrics", func(_ int, body io.Reader) error {
		text, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		bytes = len(text)
		m, err = parseMetrics(strings.NewReader(string(text)))
		return err
	})
	return m, bytes, err
}

// WorkerRow has the fields which the harness reads of a row of /v1/router/workers.
type WorkerRow struct {
	ID      uint64 `json:"worker_id"`
	PID     int    `json:"pid"`
	State   string `json:"state"`
	Problem string `json:"problem"`
	Load    struct {
		Requests int `json:"active_requests"`
		Blocks   int `json:"active_blocks"`
		Prefill  int `json:"prefill_tokens"`
	} `json:"load"`
	Cached int `json:"cached_blocks"` // by the router's index
	Feed   struct {
		State   string `json:"state"`
		Epoch   uint64 `json:"epoch"`
		LastSeq uint64 `json:"last_seq"`
	} `json:"feed"`
}

// ReadWorkers returns the workers of the router at url.
func ReadWorkers(ctx context.Context, url string) ([]WorkerRow, error) {
	var table struct {
		Rows []WorkerRow `json:"rows"`
	}
	err := getPage(ctx, url+"/v1/router/workers", func(status int, body io.Reader) error {
		if status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return json.NewDecoder(body).Decode(&table)
	})
	return table.Rows, err
}

// Instance has the fields which the harness reads of an instance in /health of a frontend.
type Instance struct {
	ID    uint64 `json:"worker_id"`
	PID   int    `json:"pid"`
	State string `json:"state"`
}

// ReadInstances returns the destinations of the frontend at url. It follows the registry itself,
// independently of its router.
func ReadInstances(ctx context.Context, url string) ([]Instance, error) {
	var body struct {
		Instances []Instance `json:"instances"`
	}
	err := getPage(ctx, url+"/health", func(_ int, in io.Reader) error { return json.NewDecoder(in).Decode(&body) })
	return body.Instances, err
}

// ReadStatus returns the status of a GET, 0 with an error without a response.
func ReadStatus(ctx context.Context, url string) (int, error) {
	status := 0
	err := getPage(ctx, url, func(s int, _ io.Reader) error {
		status = s
		return nil
	})
	return status, err
}

func getPage(ctx context.Context, url string, read func(status int, body io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := newLookClient().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := read(resp.StatusCode, resp.Body); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}

// CountDescriptors returns how many files a process has open (Linux).
func CountDescriptors(pid int) (int, error) {
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	return len(open), err
}

// ResidentBytes returns the resident memory of a process, in bytes (Linux).
func ResidentBytes(pid int) (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of %d: %q", pid, text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// WaitUntil polls every interval until ok returns nil, and returns how long that took. Other processes have
// no deadline for their state changes; patience is the caller's limit, and exceeding it is an error with ok's
// last.
func WaitUntil(ctx context.Context, every, patience time.Duration, ok func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(every)
	defer look.Stop()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return time.Since(began), nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // not the error of a poll cut off by the patience
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return time.Since(began), fmt.Errorf("after %v still: %w", time.Since(began).Round(time.Millisecond), last)
		}
	}
}
