package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
)

const (
	// maxSkew is how far clocks may be apart. Worker epochs come from clocks, and certificates are valid
	// between two times.
	maxSkew     = 5 * time.Second
	clockRemedy = "keep the clocks of all machines right with NTP"
	// maxProbe bounds a response of a running process, in bytes.
	maxProbe = 16 << 20
	// oddShare: more than one orphan in oddShare events is not an accident.
	oddShare = 10
)

// checkServer checks the process at a URL: what it serves, its view of its workers, and whether it follows
// their caches. Without a URL it checks the HTTP address of the settings, where a missing process is no
// fault.
func (d *examiner) checkServer(ctx context.Context, server string) {
	named := server != ""
	if !named {
		if d.cfg == nil || d.cfg.HTTP.Addr == "" || strings.HasSuffix(d.cfg.HTTP.Addr, ":0") {
			return
		}
		server = d.httpURL(d.cfg.HTTP.Addr)
		if live, _, err := probeLive(ctx, &d.http, server); !live || err != nil {
			if wrong := describeCertificate(server, "--server", err); wrong != nil {
				d.reportWarning("server", wrong.Remedy, "%s", wrong.What)
			}
			return // checkPort has reported what is there
		}
		d.key = cmp.Or(d.key, d.ownKey)
	}
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	server = strings.TrimRight(server, "/")
	var health healthAnswer
	asked := time.Now()
	header, err := d.getJSON(ctx, server+"/health", &health)
	if err != nil {
		if wrong := DescribePeer(ctx, &d.http, server, "--server", transportError(err)); wrong != nil {
			d.reportFailure("server", wrong.Remedy, "%s", wrong.What)
			return
		}
		d.reportFailure("server", "start it, or name another with --server", "%s: %v", server, err)
		return
	}
	d.checkHealth(server, &health)
	d.checkClock(server, header, asked, time.Now())
	d.checkWorkers(ctx, server)
	d.checkIndex(ctx, server)
}

// httpURL is the URL at which the process of these settings serves HTTP.
func (d *examiner) httpURL(addr string) string {
	if d.cfg.HTTP.TLSCert != "" {
		return "https://" + addr
	}
	return "http://" + addr
}

// healthAnswer is a frontend's health response; other roles report less.
type healthAnswer struct {
	Status string          `json:"status"`
	Models json.RawMessage `json:"models"`
	// Engines are the remote engines, if the process follows some.
	Engines []engines.Status `json:"engines"`
}

// checkHealth checks what the server reports of itself.
func (d *examiner) checkHealth(server string, h *healthAnswer) {
	var models []readiness.ModelStatus
	_ = json.Unmarshal(h.Models, &models) // routers of earlier versions send only a count
	var served []string
	aliases := map[string][]string{}
	for i := range models {
		m := &models[i]
		if d.checkModel(server, m) {
			served = append(served, fmt.Sprintf("%s (%s)", m.ID, readyText(m)))
		}
		if m.Workers > 0 {
			aliases[m.ID] = m.Aliases
		}
	}
	d.checkAliases(aliases)
	for i := range h.Engines {
		switch e := &h.Engines[i]; e.State {
		case engines.StateServing, engines.StateUnreachable: // their workers report the problem
		case engines.StateRefused:
			d.reportFailure("engine "+e.Name(), "correct the value of --engine as the message says", "%s", e.Detail)
		default:
			d.reportWarning("engine "+e.Name(), "start it, or wait until it has loaded its model: it is taken in when it comes", "%s: %s", e.State, e.Detail)
		}
	}
	what := ""
	if len(served) > 0 {
		what = ", serving " + strings.Join(served, ", ")
	}
	switch h.Status {
	case "healthy", "ready":
		d.reportOK("server", "%s is %s%s", server, h.Status, what)
	default:
		d.reportFailure("server", "start workers in its namespace and component, or wait until it is ready", "%s is %s", server, h.Status)
	}
}

// checkModel reports whether a model can be served, and records a finding if not. A model with workers should
// be.
func (d *examiner) checkModel(server string, m *readiness.ModelStatus) (served bool) {
	switch check := "model " + m.ID; {
	case m.Reason == "":
		return true
	case m.Workers > 0:
		d.reportFailure(check, "look at its workers below, and into the frontend's log", "%s: %s", server, m.Reason)
	default:
		d.reportWarning(check, "start a worker for it, or look into the frontend's log", "%s: %s", server, m.Reason)
	}
	return false
}

// readyText describes how many workers a model has, and how many are ready unless all are. Earlier versions
// do not report it.
func readyText(m *readiness.ModelStatus) string {
	if m.Status == "" || m.Ready == m.Workers {
		return fmt.Sprintf("workers: %d", m.Workers)
	}
	return fmt.Sprintf("workers: %d, ready: %d", m.Workers, m.Ready)
}

// checkClock compares the server's clock with ours. The Date header has whole seconds.
func (d *examiner) checkClock(server string, header http.Header, asked, answered time.Time) {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return
	}
	early, late := asked.Sub(date.Add(time.Second)), date.Sub(answered)
	if apart := max(early, late); apart > maxSkew {
		d.reportWarning("clock", clockRemedy, "the clocks of this machine and of %s are %v apart", server, apart.Round(time.Second))
		return
	}
	d.reportOK("clock", "this machine and %s agree", server)
}

// checkWorkers checks the server's table of workers, if it has one.
func (d *examiner) checkWorkers(ctx context.Context, server string) {
	var table struct {
		Rows []examinedWorker `json:"rows"`
	}
	_, err := d.getJSON(ctx, server+"/v1/router/workers", &table)
	if needsKey(err) {
		d.reportWarning("workers", "show a key for administrators: in the variable PENSTOCK_API_KEY, or one of --api-key-file", "%s does not tell of its workers: %v", server, err)
	}
	if err != nil {
		return // or the process has no router
	}
	table.Rows = includeWorkersBehind(table.Rows)
	ready, unused, live, guessed := 0, 0, 0, 0
	for _, r := range table.Rows {
		of := fmt.Sprintf("worker %d rank %d", r.ID, r.Rank)
		role, err := engine.ParseRole(r.Role)
		switch {
		case err == nil && !role.TakesRequests() && r.State == "ready": // its warning is below
			unused++
		case r.State == "ready":
			ready++
		case r.Problem != "":
			d.reportFailure(of, remedyOf(&r), "%s: %s", r.State, r.Problem)
		default:
			d.reportWarning(of, remedyOf(&r), "%s", r.State)
		}
		if r.BehindError != "" {
			d.reportWarning(of, "look into the log of that router on "+r.Host, "what is behind it is not known: %s", r.BehindError)
		}
		for _, w := range r.Warnings {
			d.reportWarning(fmt.Sprintf("%s of %d/%d", w.Code, r.ID, r.Rank), cmp.Or(w.Remedy, "look into the log of that worker on "+r.Host), "%s", w.Detail)
		}
		check := fmt.Sprintf("events of %d/%d", r.ID, r.Rank)
		switch {
		case d.lacksEventPlane() && slices.Contains([]string{"repairing", "resync", "waiting"}, r.Feed.State):
		case r.Feed.State == "repairing":
			d.reportWarning(check, "wait a moment; if it stays so, look at the NATS server and the worker's log", "%d events are missing (%d gaps so far): its cache does not count until it has sent them again", r.Feed.Missing, r.Feed.Gaps)
		case r.Feed.State == "resync":
			d.reportWarning(check, "wait a moment; if it stays so, look at the NATS server and the worker's log", "events were lost (%d gaps, %d repairs given up): its cache does not count until it has described it again", r.Feed.Gaps, r.Feed.GivenUp)
		case r.Feed.State == "mismatch":
			d.reportFailure(check, "start the worker with the block size of its engine", "its events have another block size than its model card")
		case r.Feed.State == "waiting":
			d.reportWarning(check, "wait a moment; if it stays so, look at the NATS server: frontends and workers need the same one", "no event has come yet")
		case r.Feed.Lagging:
			d.reportWarning(check, "look at the load of this machine and of the NATS server", "the server has been behind the worker for %.0f s, at event %d, %d missing", r.Feed.LagFor, r.Feed.LastSeq, r.Feed.Missing)
		case r.Feed.Orphans > r.Feed.Events/oddShare:
			d.reportWarning(check, "the engine stores blocks after ones that it has not stored, or has removed: look at how it sends its events", "%d of %d events are orphans: their blocks match nothing", r.Feed.Orphans, r.Feed.Events)
		case !r.Feed.Guessed && slices.ContainsFunc(r.Warnings, engine.Warning.ConcernsEvents): // reported above
		default:
			live++
		}
		if r.Feed.Guessed {
			guessed++
		}
	}
	if ready > 0 {
		d.reportOK("workers", "%d of %d are ready", ready, len(table.Rows)-unused)
	}
	if d.lacksEventPlane() {
		d.reportOK("events", "without NATS there are none: routing goes by load, not by caches")
	} else if live > 0 && live < len(table.Rows) {
		d.reportWarning("events", "see what is said of the others above", "%d of %d event feeds are as they should be%s", live, len(table.Rows), guessText(guessed))
	} else if live > 0 {
		d.reportOK("events", "%d of %d event feeds are as they should be%s", live, len(table.Rows), guessText(guessed))
	}
}

// guessText describes how many feeds are predictions for engines which publish no events.
func guessText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of them are guesses about engines that publish nothing", n)
}

// checkIndex checks that the server's router has read the retained cache events.
func (d *examiner) checkIndex(ctx context.Context, server string) {
	var index struct {
		Events   bool `json:"events"`
		CaughtUp bool `json:"caught_up"`
		Blocks   int  `json:"blocks"`
	}
	if _, err := d.getJSON(ctx, server+"/v1/router/index", &index); err != nil {
		return
	}
	switch {
	case !index.Events:
		d.reportOK("index", "this router does not follow cache events")
	case !index.CaughtUp:
		d.reportWarning("index", "wait; if it stays so, look at the NATS server", "the router has not read all cache events yet: fewer cache hits are found")
	default:
		d.reportOK("index", "%d blocks are known, all events are read", index.Blocks)
	}
}

// isPenstock reports whether a Penstock process answers at a URL.
func (d *examiner) isPenstock(ctx context.Context, server string) bool {
	live, _, err := probeLive(ctx, &d.http, server)
	return live && err == nil
}

// transportError returns the error of a request that got no response; nil if it got one.
func transportError(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return err
	}
	return nil
}

// getJSON reads JSON from a URL. It accepts the statuses 200 and 503.
func (d *examiner) getJSON(ctx context.Context, url string, out any) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if d.key != "" {
		req.Header.Set("Authorization", "Bearer "+d.key)
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return nil, &statusError{resp.StatusCode}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProbe)).Decode(out); err != nil {
		return nil, fmt.Errorf("its answer is not what this version expects: %w", err)
	}
	return resp.Header, nil
}

// statusError is a response without a usable body.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return fmt.Sprintf("it answers %d %s", e.status, http.StatusText(e.status))
}

// needsKey reports whether a request was refused because it needs a key.
func needsKey(err error) bool {
	var e *statusError
	return errors.As(err, &e) && (e.status == http.StatusUnauthorized || e.status == http.StatusForbidden)
}

// remedyOf is the remedy for a worker which is not ready.
func remedyOf(w *examinedWorker) string {
	switch w.State {
	case readiness.StateQuarantined:
		return fmt.Sprintf("see whether process %d on %s runs and can be reached at %s, and look into its log; it gets requests again once it answers a ping, and leaves by itself if it has died", w.PID, w.Host, w.Addr)
	case engine.StateNotReady:
		return "start its engine, or look into the engine's log; the worker gets requests again once its engine answers"
	case readiness.StateUnfit:
		return "start it with the model and the settings of the other workers, or with another --served-model-name"
	case readiness.StateUnconfirmed:
		return "look at what discovery is in, the NATS server or --discovery-dir: it cannot say now whether the worker is there; meanwhile requests go there as long as it answers"
	case engine.StateDraining:
		return "nothing, if it was stopped: it finishes what it has and leaves"
	}
	return "look into the log of that worker on " + w.Host
}

// lacksEventPlane reports whether the settings describe a fleet without NATS and ZeroMQ, in which no
// process receives another's cache events.
func (d *examiner) lacksEventPlane() bool {
	return d.cfg != nil && d.cfg.Command != config.Up && d.cfg.NATS.URLs == "" && d.cfg.NATS.Listen == "" && d.cfg.Events.Plane != config.PlaneZMQ
}

// examinedWorker holds the fields which the doctor reads from a row of the server's worker table.
type examinedWorker struct {
	ID      uint64 `json:"worker_id"`
	Rank    uint32 `json:"dp_rank"`
	Role    string `json:"role"`
	Model   string `json:"model"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Addr    string `json:"addr"`
	State   string `json:"state"`
	Problem string `json:"problem"`
	// Warnings are problems of the worker's engine which do not stop it from serving.
	Warnings []engine.Warning `json:"warnings"`
	Feed     struct {
		State   string  `json:"state"`
		Guessed bool    `json:"guessed"`
		LastSeq uint64  `json:"last_seq"`
		Events  uint64  `json:"events"`
		Missing uint64  `json:"missing"`
		Gaps    uint64  `json:"gaps"`
		GivenUp uint64  `json:"given_up"`
		Orphans uint64  `json:"orphans"`
		Lagging bool    `json:"lagging"`
		LagFor  float64 `json:"lag_seconds"`
	} `json:"feed"`
	// Behind are the workers behind a router process; BehindError says why they are unknown.
	Behind      []examinedWorker `json:"behind"`
	BehindError string           `json:"behind_error"`
}

// includeWorkersBehind returns rows and, once each, the workers behind the rows which are routers.
func includeWorkersBehind(rows []examinedWorker) []examinedWorker {
	all := slices.Clone(rows)
	for i := range rows {
		for _, w := range includeWorkersBehind(rows[i].Behind) {
			if !slices.ContainsFunc(all, func(have examinedWorker) bool {
				return have.ID == w.ID && have.Rank == w.Rank && have.State == w.State
			}) {
				all = append(all, w)
			}
		}
	}
	return all
}
