package planner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
)

// SourceConfig says where a planner reads.
type SourceConfig struct {
	// Server is the URL of a frontend or router, without a trailing slash: its table of workers is read. "" reads none: the
	// connector then knows the workers.
	Server string
	// Pages are URLs of pages of metrics, whose requests are added up. None are the page of Server.
	Pages []string
	// Key is shown to Server, "" for none; and Client is used for all calls.
	Key    string
	Client *http.Client
	// Model is the model whose requests and workers count, "" for all.
	Model string
}

// sources reads what a planner knows of a fleet.
type sources struct {
	cfg    SourceConfig
	pages  []string
	meters []pageMeter
	meter  plan.Meter
	at     kv.Mono // what the clocks of all pages advanced, at least
	// measuredAt is until when the last traffic which was not frozen was counted.
	measuredAt time.Time
	sampling   bool // whether an interval is measured before its end
}

func newSources(cfg SourceConfig) *sources {
	s := &sources{cfg: cfg, pages: cfg.Pages}
	if len(s.pages) == 0 && cfg.Server != "" {
		s.pages = []string{cfg.Server + "/metrics"}
	}
	s.meters = make([]pageMeter, len(s.pages))
	return s
}

// reading is what was read at the end of an interval.
type reading struct {
	traffic *plan.Traffic // nil if it is not known
	workers []FleetWorker
	known   bool // whether workers are all of them
	frozen  bool // whether a page of the traffic was not made again
	// problems say in words what could not be read.
	problems []string
}

// fetched is a body which was fetched, or why not.
type fetched struct {
	data     []byte
	at       time.Time // by the clock of its server
	received time.Time
	err      error
}

// readAll reads all sources, concurrently, and measures the interval.
func (s *sources) readAll(ctx context.Context, interval time.Duration) reading {
	bodies, r := s.fetchAll(ctx)
	s.measurePages(bodies, interval, &r)
	return r
}

// readSample reads all sources before an interval is over, and measures what it has until now, as if it had begun elapsed
// ago. What readAll measures stays as it is.
func (s *sources) readSample(ctx context.Context, elapsed time.Duration) reading {
	bodies, r := s.fetchAll(ctx)
	sample := *s
	sample.sampling = true
	sample.measurePages(bodies, elapsed, &r)
	return r
}

// fetchAll fetches all pages, and reads the table of workers.
func (s *sources) fetchAll(ctx context.Context) (bodies []fetched, r reading) {
	bodies = make([]fetched, len(s.pages))
	var table fetched
	var fetching sync.WaitGroup
	for i, url := range s.pages {
		fetching.Go(func() { bodies[i] = s.fetchBody(ctx, url, s.cfg.Server != "" && url == s.cfg.Server+"/metrics") })
	}
	if s.cfg.Server != "" {
		fetching.Go(func() { table = s.fetchBody(ctx, s.cfg.Server+"/v1/router/workers", true) })
	}
	fetching.Wait()
	if s.cfg.Server != "" {
		err := table.err
		if err == nil {
			r.workers, err = parseWorkers(table.data, s.cfg.Model)
		}
		if r.known = err == nil; err != nil {
			r.problems = append(r.problems, fmt.Sprintf("the workers of %s: %v", nameURL(s.cfg.Server), err))
		}
	}
	return bodies, r
}

// nameURL returns a URL without its query, which may have a secret.
func nameURL(text string) string {
	name, _, _ := strings.Cut(text, "?")
	return name
}

// measurePages fills in the traffic, if all pages tell their part of it.
func (s *sources) measurePages(bodies []fetched, interval time.Duration, r *reading) {
	var sum plan.IntervalCounts
	var counted time.Time // the earliest of all pages
	stale := false        // whether one is of a sample
	complete, least := len(bodies) > 0 && (s.cfg.Server == "" || r.known), interval
	for i := range bodies {
		c := s.measurePage(i, &bodies[i], interval)
		if c.problem != "" {
			r.problems = append(r.problems, fmt.Sprintf("the metrics of %s: %s", nameURL(s.pages[i]), c.problem))
		}
		complete = complete && c.known
		least = min(least, c.advance)
		stale = stale || c.stale
		if i == 0 || c.counted.Before(counted) {
			counted = c.counted
		}
		addCounts(&sum, &c.IntervalCounts)
	}
	if !complete {
		return
	}
	if slices.ContainsFunc(r.workers, func(w FleetWorker) bool { return w.Role == plan.Prefill }) {
		sum.Waiting[plan.Prefill], sum.Waiting[plan.Aggregated] = sum.Waiting[plan.Aggregated], 0
	}
	countLoad(&sum, r.workers)
	s.at = s.at.Add(least)
	sum.At = s.at
	if !s.measuredAt.IsZero() {
		sum.Intervals = counted.Sub(s.measuredAt).Seconds() / interval.Seconds()
	}
	if r.frozen = least == 0; !r.frozen {
		s.measuredAt = counted
	}
	var reason string
	if r.traffic, reason = s.meter.MeasureTraffic(&sum); reason != "" {
		r.problems = append(r.problems, reason)
	} else {
		r.traffic.Stale = stale
	}
}

func (s *sources) measurePage(i int, body *fetched, interval time.Duration) pageCounts {
	if body.err != nil {
		return pageCounts{problem: body.err.Error()}
	}
	r, err := parsePage(body.data, s.cfg.Model)
	if err != nil {
		return pageCounts{problem: err.Error()}
	}
	r.at = body.at
	count := s.meters[i].countInterval
	if s.sampling {
		count = s.meters[i].countSample
	}
	c := count(r, body.received, interval)
	if s.cfg.Server != "" && r.engine { // the table of workers has the load of engines
		c.Waiting, c.Running = sumZero, sumZero
	}
	return c
}

// sumZero is no load.
var sumZero = plan.IntervalCounts{}.Waiting

// fetchBody gets a URL. It shows the key only if withKey says so.
func (s *sources) fetchBody(ctx context.Context, url string, withKey bool) (f fetched) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fetched{err: err}
	}
	if withKey && s.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.cfg.Key)
	}
	resp, err := s.cfg.Client.Do(req)
	if err != nil {
		return fetched{err: fmt.Errorf("no answer: %w", errors.Unwrap(err))}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return fetched{err: fmt.Errorf("it answered %s: give a key for administrators with --api-key-file", resp.Status)}
	default:
		return fetched{err: fmt.Errorf("it answered %s", resp.Status)}
	}
	f.data, f.err = readBounded(resp.Body)
	f.received = time.Now()
	f.at = pageTime(resp.Header, f.received)
	return f
}
