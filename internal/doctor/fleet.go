package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"penstock/internal/node/planes"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/catalog"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/rpc"
)

// nearlyFull is the used share of a limit above which a finding is a warning.
const nearlyFull = 0.9

// checkFleet checks what the settings share with other processes: the NATS server, discovery, and every
// worker in discovery.
func (d *examiner) checkFleet(ctx context.Context) {
	p := &planes.Set{RPC: rpc.NewMemPlane()}
	defer p.Close()
	if !d.connectNATS(p) {
		return
	}
	if p.Conn != nil {
		d.checkJetStream(ctx, p.Conn, d.questionTimeout())
		if d.cfg.Events.Plane != config.PlaneZMQ {
			d.checkSnapshots(ctx, p.Conn)
		}
	}
	cfg := *d.cfg
	if cfg.Command == config.Up {
		if p.Conn == nil {
			return // everything is in one process: checkServer covers it
		}
		cfg.Fleet.Discovery = config.DiscoveryNATS
	} else if err := p.OpenRPC(&cfg, d.log); err != nil {
		d.reportFailure("request plane", "correct the settings that begin with rpc-", "%v", err)
		return
	} else if cfg.RPC.Addr == "" && p.Addr != "" {
		d.reportOK("rpc-addr", "none is given: requests are served at %s, a free port", p.Addr)
	}
	set, ok := d.discoverWorkers(ctx, p, &cfg)
	if !ok {
		return
	}
	if cfg.Events.Plane == config.PlaneZMQ && cfg.Command != config.Up {
		d.checkEventPlane(ctx, p, &cfg)
	}
	cards := map[string][]engine.Card{} // of each model, of workers which take requests
	for i := range set {
		d.checkWorker(ctx, p.RPC, &set[i], cards)
	}
	if cfg.Fleet.Discovery == config.DiscoveryStatic {
		d.checkStaticWorkers(ctx, p.RPC, cfg.Fleet.StaticWorkers, set)
	}
	aliases := map[string][]string{}
	for name, of := range cards {
		aliases[name] = of[0].Aliases
	}
	d.checkAliases(aliases)
	d.checkBlockSize(cards)
}

// checkAliases warns of each alias of a model by which clients get another model. The map has the aliases of each served
// model.
func (f *findings) checkAliases(aliases map[string][]string) {
	for _, c := range catalog.FindAliasClashes(aliases) {
		f.reportWarning("alias "+c.Alias, "give one of the two models other names, with --served-model-name or name= of its --engine",
			"the models %s and %s are both called %s: requests for it go to %s", c.Model, c.Hidden, c.Alias, c.Model)
	}
}

// checkStaticWorkers checks the addresses of static discovery which have no worker in set: each should
// answer.
func (d *examiner) checkStaticWorkers(ctx context.Context, plane rpc.Plane, addrs []string, set []disco.Instance) {
	for _, addr := range addrs {
		if slices.ContainsFunc(set, func(in disco.Instance) bool { return in.Addr == addr }) {
			continue
		}
		if _, _, err := d.pingWorker(ctx, plane, addr); err != nil {
			d.reportFailure("worker at "+addr, "start a worker there, or take the address out of --static-workers", "no answer: %v", err)
		}
	}
}

// connectNATS connects to the NATS server of the settings; without one there is nothing to check. It reports
// whether checks that need it can go on.
func (d *examiner) connectNATS(p *planes.Set) bool {
	cfg := d.cfg
	url, mayBeAway := cfg.NATS.URLs, false
	if url == "" && cfg.NATS.Listen != "" {
		// This process embeds the server, which exists only while the process runs.
		url, mayBeAway = "nats://"+cfg.NATS.Listen, true
	}
	if url == "" {
		return cfg.Command == config.Up || cfg.Fleet.Discovery != config.DiscoveryNATS
	}
	const remedy = "start a NATS server there, or have a process of the fleet embed one with --nats-listen; see --nats, --nats-creds, --nats-token-file and --nats-tls-ca"
	err := p.ConnectNATS(cfg, url, "penstock doctor", d.log, nats.NoReconnect())
	switch {
	case errors.Is(err, natsd.ErrTooOld):
		d.reportFailure("nats", "upgrade the NATS server to "+natsd.MinServerVersion+" or newer, or have a process of the fleet embed one with --nats-listen", "%v", err)
		return false
	case err != nil && !mayBeAway:
		d.reportFailure("nats", remedy, "%v", err)
		return false
	case err != nil:
		return false
	}
	trip, err := p.Conn.RTT()
	if err != nil {
		d.reportFailure("nats", remedy, "the server does not answer: %v", err)
		return false
	}
	d.reportOK("nats", "a server of version %s answers after %v", p.Conn.ConnectedServerVersion(), trip.Round(time.Microsecond))
	return true
}

// checkJetStream checks that JetStream is available and has room, and that our streams exist.
func (f *findings) checkJetStream(ctx context.Context, conn *nats.Conn, timeout time.Duration) {
	const check, look = "jetstream", "look into the log of the NATS server"
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	js, err := jetstream.New(conn)
	var info *jetstream.AccountInfo
	if err == nil {
		info, err = js.AccountInfo(ctx)
	}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		f.reportFailure(check, "start the server with JetStream (nats-server -js), and for this account", "the server has no JetStream for us")
		return
	case err != nil:
		f.reportFailure(check, look, "%v", err)
		return
	}
	used, limit := info.Store, info.Limits.MaxStore
	if limit > 0 && float64(used) > nearlyFull*float64(limit) {
		f.reportWarning(check, "give the account or the server more room, or shorten what streams keep", "%s of %s are used: when it is full, events are lost", formatBytes(used), formatBytes(uint64(limit)))
	} else {
		f.reportOK(check, "%s are stored in %d streams", formatBytes(used), info.Streams)
	}
	streams := js.ListStreams(ctx)
	for s := range streams.Info() {
		f.checkStream(s)
	}
	if err := streams.Err(); err != nil {
		f.reportWarning("streams", look, "they cannot be listed: %v", err)
	}
}

// checkStream checks one stream's room, and the server's clock by the stream's timestamp.
func (f *findings) checkStream(s *jetstream.StreamInfo) {
	check := "stream " + s.Config.Name
	if s.Config.MaxBytes > 0 && s.Config.Discard == jetstream.DiscardNew && float64(s.State.Bytes) > nearlyFull*float64(s.Config.MaxBytes) {
		f.reportWarning(check, "remove what is old, or give the stream more room", "%s of %s are used: when it is full, writing fails", formatBytes(s.State.Bytes), formatBytes(uint64(s.Config.MaxBytes)))
		return
	}
	if apart := time.Since(s.TimeStamp).Abs(); !s.TimeStamp.IsZero() && apart > maxSkew {
		f.reportWarning("clock", clockRemedy, "the clocks of this machine and of the NATS server are %v apart", apart.Round(time.Second))
	}
	f.reportOK(check, "%d messages, %s, %d readers", s.State.Msgs, formatBytes(s.State.Bytes), s.State.Consumers)
}

// discoverWorkers reads the workers of the settings' namespace and component from discovery. It first checks
// that the store exists, because opening a registry creates it.
func (d *examiner) discoverWorkers(ctx context.Context, p *planes.Set, cfg *config.Loaded) (set []disco.Instance, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, d.questionTimeout())
	defer cancel()
	const empty = "start a worker, or a fleet's first process: it makes what is missing"
	switch cfg.Fleet.Discovery {
	case config.DiscoveryNATS:
		var c disco.NATSRegistryConfig
		c.EnsureDefaults()
		js, err := jetstream.New(p.Conn)
		if err == nil {
			_, err = js.KeyValue(ctx, c.Bucket)
		}
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			d.reportWarning("discovery", empty, "the bucket %s is not there: no process has registered yet", c.Bucket)
			return nil, false
		}
		if err != nil {
			d.reportFailure("discovery", "look into the log of the NATS server", "the bucket %s cannot be read: %v", c.Bucket, err)
			return nil, false
		}
	case config.DiscoveryFile:
		switch _, err := os.ReadDir(cfg.Fleet.DiscoveryDir); {
		case errors.Is(err, os.ErrNotExist):
			d.reportWarning("discovery", empty, "the directory %s is not there: no process has registered yet", cfg.Fleet.DiscoveryDir)
			return nil, false
		case err != nil:
			d.reportFailure("discovery", "check the directory and the rights to it", "%v", err)
			return nil, false
		}
	}
	if err := p.OpenRegistry(cfg, d.log); err != nil {
		d.reportFailure("discovery", "correct --discovery", "%v", err)
		return nil, false
	}
	known := true
	var all []disco.Instance
	for _, kind := range catalog.Kinds() { // workers which take requests first: the others are compared with them
		of, answered := d.listInstances(ctx, p.Registry, kind)
		all, known = append(all, of...), known && answered
	}
	for _, in := range all {
		if in.Namespace == cfg.Fleet.Namespace && in.Component == cfg.Fleet.Component {
			set = append(set, in)
		}
	}
	switch {
	case !known:
		d.reportFailure("discovery", "look at the store, and at the network between", "it did not tell within %v", d.questionTimeout())
		return nil, false
	case len(set) == 0:
		d.reportWarning("discovery", "start a worker with the same --namespace and --component, or look with others", "no worker is registered in namespace %s, component %s", cfg.Fleet.Namespace, cfg.Fleet.Component)
	default:
		d.reportOK("discovery", "%d workers are registered in namespace %s, component %s", len(set), cfg.Fleet.Namespace, cfg.Fleet.Component)
	}
	return set, true
}

// listInstances returns the instances of a kind; known is false if discovery did not tell in time.
func (d *examiner) listInstances(ctx context.Context, registry disco.Registry, kind disco.Kind) (set []disco.Instance, known bool) {
	ctx, cancel := context.WithTimeout(ctx, d.questionTimeout())
	defer cancel()
	err := registry.Watch(ctx, kind, func(all []disco.Instance) {
		if !known {
			set, known = all, true
		}
		cancel()
	})
	return set, known && err == nil
}

// checkWorker checks one worker: its registration, its card against the earlier cards of its model, and
// whether it answers.
func (d *examiner) checkWorker(ctx context.Context, plane rpc.Plane, in *disco.Instance, cards map[string][]engine.Card) {
	check := fmt.Sprintf("worker %d", in.ID)
	where := fmt.Sprintf("%s (pid %d)%s", in.Host, in.PID, workerAge(in.Epoch, time.Now()))
	card, err := engine.DecodeCard(in.Meta)
	if err != nil {
		d.reportFailure(check, "run the same version everywhere", "%s: its model card cannot be read: %v", where, err)
		return
	}
	if why := differenceFrom(cards[card.Name], &card); why != "" {
		d.reportFailure(check, "start the workers of one name with the same settings, or give one another name with --served-model-name", "%s: %s", where, why)
		return
	}
	if card.Role.TakesRequests() {
		cards[card.Name] = append(cards[card.Name], card)
	}
	if !strings.Contains(in.Addr, "://") {
		d.reportOK(check, "%s serves %s within its process", where, card.Name)
		return
	}
	pong, took, err := d.pingWorker(ctx, plane, in.Addr)
	switch {
	case onOtherHost(in) && isLoopbackURL(in.Addr) && (err != nil || pong.Epoch != in.Epoch):
		d.reportFailure(check, reachableRemedy("rpc-addr"), "%s tells others the loopback address %s, which other hosts cannot reach", where, in.Addr)
	case err != nil:
		d.reportFailure(check, "look into its log, and at the network and the --rpc- settings between; a worker that died leaves discovery by itself", "%s at %s does not answer: %v", where, in.Addr, err)
	case pong.Epoch != in.Epoch:
		d.reportWarning(check, "wait until discovery has followed; if it stays so, two processes have one --worker-id", "%s at %s is in epoch %d, and discovery says %d", where, in.Addr, pong.Epoch, in.Epoch)
	case pong.State != engine.StateReady:
		d.reportWarning(check, "look into its log", "%s at %s is %s", where, in.Addr, pong.State)
	case in.Unconfirmed:
		d.reportWarning(check, "look at the connection between it and the store", "%s at %s answers, but discovery does not confirm it", where, in.Addr)
	case lacksChecksums(plane, in.Addr):
		d.reportWarning(check, "run this version there too, or use TLS with the --rpc-tls- settings", "%s at %s answers, and its version has no checksums: bytes that are damaged on the way to it are not noticed", where, in.Addr)
	default:
		if unused, ok := card.UnusedRoleWarning(); ok {
			d.reportWarning(check, unused.Remedy, "%s at %s answers; %s", where, in.Addr, unused.Detail)
			return
		}
		d.reportOK(check, "%s serves %s at %s, answers after %v, card %.8s", where, card.Name, in.Addr, took.Round(10*time.Microsecond), card.Checksum())
	}
}

// differenceFrom describes how a card differs from those by which its name is served; "" if it agrees, or if
// there are none. Workers which take requests must agree with the first, and so with all; a prefill worker
// with any.
func differenceFrom(served []engine.Card, card *engine.Card) string {
	why := ""
	for i := range served {
		of := card.DescribeDifference(&served[i])
		if of == "" {
			return ""
		}
		why = cmp.Or(why, of)
	}
	return why
}

// onOtherHost reports whether an instance is on another host, by host name.
func onOtherHost(in *disco.Instance) bool {
	own, err := os.Hostname()
	return err == nil && in.Host != own
}

// isLoopbackURL reports whether the address of a request plane is a loopback address.
func isLoopbackURL(addr string) bool {
	u, err := url.Parse(addr)
	return err == nil && config.IsLoopback(u.Host)
}

// reachableRemedy is the remedy for a process which advertises a loopback address. setting is its listen
// flag.
func reachableRemedy(setting string) string {
	return fmt.Sprintf("start it without --%s, and with --nats naming the NATS server by an address that all hosts reach, or with --%s HOST:0 and an address of its host", setting, setting)
}

// lacksChecksums reports whether the connection to addr has neither TLS nor checksums.
func lacksChecksums(plane rpc.Plane, addr string) bool {
	p, ok := plane.(interface{ Unchecked(addr string) bool })
	return ok && p.Unchecked(addr)
}

// pingWorker asks a worker for its state.
func (d *examiner) pingWorker(ctx context.Context, plane rpc.Plane, addr string) (pong engine.Pong, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.questionTimeout())
	defer cancel()
	start := time.Now()
	err = plane.Call(ctx, addr, engine.MethodPing, nil, func(frame []byte) error { return json.Unmarshal(frame, &pong) })
	return pong, time.Since(start), err
}

// workerAge returns how long a worker has run, if its epoch is a time in milliseconds, as Penstock's epochs
// are.
func workerAge(epoch uint64, now time.Time) string {
	d := now.Sub(time.UnixMilli(int64(epoch))).Round(time.Second)
	if epoch > uint64(now.UnixMilli()) || d > 10*365*24*time.Hour {
		return ""
	}
	return fmt.Sprintf(" for %v", d)
}

// checkBlockSize checks that a worker of these settings would have the block size of the workers which
// already serve its model.
func (d *examiner) checkBlockSize(cards map[string][]engine.Card) {
	if d.cfg.Command != config.Worker || d.cfg.HasRemoteEngines() || !d.cfg.WorkerRoles()[0].TakesRequests() {
		return
	}
	name := d.cfg.ModelName()
	if len(cards[name]) == 0 {
		return
	}
	card := &cards[name][0]
	if card.BlockSize != d.cfg.Engine.BlockSize {
		d.reportFailure("block size", fmt.Sprintf("give --kv-cache-block-size %d, or another --served-model-name", card.BlockSize), "%s is served with blocks of %d tokens, and these settings say %d", name, card.BlockSize, d.cfg.Engine.BlockSize)
		return
	}
	d.reportOK("block size", "%d tokens, as the workers which serve %s have", card.BlockSize, name)
}
