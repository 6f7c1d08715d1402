package planes

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/xfer"
)

// openBulk opens the plane for bulk data. base has what it shares with the request plane. A process with engines
// receives: over TCP unless the settings confine it to this host, and it exchanges no KV blocks. Others only send, in any
// way.
func (p *Set) openBulk(cfg *config.Loaded, base xfer.TCPConfig, log *slog.Logger) error {
	p.transfers = newTransferMetrics()
	base.Observer, base.Log = p.transfers, log
	if cfg.IsOneProcess() {
		p.transfers.transports = []xfer.Transport{xfer.Mem}
		mem, err := xfer.NewMemPlane(base.Config)
		if err == nil {
			p.Bulk, err = xfer.NewFastest(mem, nil, nil, nil)
		}
		return err
	}
	shm, err := xfer.NewShmPlane(base.Config)
	if err != nil { // not on this system
		shm = nil
		log.Debug("there is no shared memory for bulk data", "error", err)
	}
	var tcp *xfer.TCPPlane
	var ucx *xfer.UCXPlane
	if !cfg.Command.HasEngines() || cfg.Media.Transfer != "shm" || cfg.HasRemoteEngines() || cfg.ExchangesBlocks() {
		if cfg.Command.HasEngines() {
			at := planeAddr{listen: cfg.RPC.BulkAddr, advertise: hostOf(cfg.RPC.Advertise)}
			if at, err = p.choosePlaneAddr(cfg, "bulk-addr", at, log); err != nil {
				return err
			}
			base.Listen, base.Advertise = at.listen, at.advertise
		}
		if tcp, err = xfer.NewTCPPlane(base); err != nil {
			return err
		}
		if cfg.RPC.BulkUCX {
			if ucx, err = openUCX(base, log); err != nil {
				return err
			}
			p.transfers.transports = []xfer.Transport{xfer.UCX}
		}
	}
	if shm == nil && tcp == nil {
		return nil
	}
	p.transfers.transports = append(p.transfers.transports, xfer.Shm, xfer.TCP)
	fastest, err := xfer.NewFastest(nil, shm, ucx, tcp)
	if err != nil {
		return err
	}
	p.Bulk = fastest
	p.closers = append(p.closers, fastest.Close)
	return nil
}

// openUCX opens the plane over UCX: peers meet at a free port beside that for TCP.
func openUCX(base xfer.TCPConfig, log *slog.Logger) (*xfer.UCXPlane, error) {
	if host := hostOf(base.Listen); host != base.Listen {
		base.Listen = net.JoinHostPort(host, "0")
	}
	base.Advertise = hostOf(base.Advertise)
	p, err := xfer.NewUCXPlane(base)
	if err != nil {
		return nil, fmt.Errorf("bulk-ucx: %w", err)
	}
	log.Warn("bulk data over UCX are not encrypted, and UCX takes everything which reaches its ports for a peer: use it on networks whose hosts trust each other")
	return p, nil
}

// hostOf returns the host of HOST or HOST:PORT.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// transferMetrics counts transfers of bulk data.
type transferMetrics struct {
	transports []xfer.Transport                // whose series exist from the start
	vectors    atomic.Pointer[transferVectors] // nil until register
}

type transferVectors struct {
	bytes, transfers *prometheus.CounterVec
	seconds          *prometheus.HistogramVec
}

var _ xfer.Observer = (*transferMetrics)(nil)

func newTransferMetrics() *transferMetrics { return &transferMetrics{} }

func (t *transferMetrics) register(m *obs.Metrics) {
	v := &transferVectors{
		bytes:     m.Counter("xfer_bytes_total", "Bytes of bulk data, verified by the process which wants them (owner) or sent to it (writer).", "side", "transport"),
		transfers: m.Counter("xfer_transfers_total", "Transfers of bulk data which ended, by outcome; the transport is none if no writer came.", "side", "transport", "outcome"),
		seconds: m.Histogram("xfer_seconds", "Time of transfers of bulk data which ended well, from the writer's claim.",
			[]float64{1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}, "side", "transport"),
	}
	for _, side := range []xfer.Side{xfer.OwnerSide, xfer.WriterSide} {
		for _, transport := range t.transports {
			v.transfers.WithLabelValues(side.String(), transport.String(), xfer.OK.String())
			v.bytes.WithLabelValues(side.String(), transport.String())
			v.seconds.WithLabelValues(side.String(), transport.String())
		}
	}
	t.vectors.Store(v)
}

// ObserveTransfer implements xfer.Observer.
func (t *transferMetrics) ObserveTransfer(r xfer.Report) {
	v := t.vectors.Load()
	if v == nil {
		return
	}
	side, transport := r.Side.String(), r.Transport.String()
	v.transfers.WithLabelValues(side, transport, r.Outcome.String()).Inc()
	v.bytes.WithLabelValues(side, transport).Add(float64(r.Bytes))
	if r.Outcome == xfer.OK {
		v.seconds.WithLabelValues(side, transport).Observe(r.Took.Seconds())
	}
}
