package planes

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// OpenRPC opens the request planes: the one on which this process serves, and all by which it may have to
// call others.
func (p *Set) OpenRPC(cfg *config.Loaded, log *slog.Logger) error {
	if cfg.IsOneProcess() {
		p.RPC = rpc.NewMemPlane() // all roles are in this process
		return p.openBulk(cfg, xfer.TCPConfig{}, log)
	}
	log = obs.Component(log, "rpc")
	token, err := config.ReadSecret("rpc-token-file", cfg.RPC.TokenFile)
	if err != nil {
		return err
	}
	server, client, err := loadTLS("rpc", cfg.RPC.TLSCert, cfg.RPC.TLSKey, cfg.RPC.TLSCA, tls.VersionTLS13)
	if err != nil {
		return err
	}
	if cfg.RPC.TLSCA == "" {
		client = nil // calls use TLS only to servers whose authorities are known
	}
	at := planeAddr{cfg.RPC.Addr, cfg.RPC.Advertise}
	if cfg.Command == config.Up { // which may share a file with processes that have these settings
		at = planeAddr{}
	}
	unguarded := false
	if cfg.RPC.Plane != config.PlaneNATS {
		if at, err = p.choosePlaneAddr(cfg, "rpc-addr", at, log); err != nil {
			return err
		}
		p.Addr = at.listen
		unguarded = !config.IsLoopback(at.listen) && (server == nil || token == "" && server.ClientAuth == tls.NoClientCert)
	}
	planes := map[string]rpc.Plane{}
	overTCP, err := rpc.NewTCPPlane(rpc.TCPConfig{Advertise: at.advertise, ServerTLS: server, ClientTLS: client, Token: token, Log: log})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, overTCP.Close)
	planes["tcp"] = overTCP
	overHTTP, err := rpc.NewHTTPPlane(rpc.HTTPConfig{Advertise: at.advertise, ServerTLS: server, ClientTLS: client, Token: token, Log: log})
	if err != nil {
		return err
	}
	p.onClose(overHTTP.Close)
	planes["http"], planes["https"] = overHTTP, overHTTP
	if p.Conn != nil {
		overNATS, err := rpc.NewNATSPlane(p.Conn, rpc.NATSPlaneConfig{Log: log})
		if err != nil {
			return err
		}
		p.onClose(overNATS.Close)
		planes["nats"] = overNATS
	}
	serving := planes[cfg.RPC.Plane]
	if serving == nil { // a frontend without NATS, which serves only what it lends
		serving = overTCP
	}
	if unguarded {
		serving = &unguardedPlane{Plane: serving, warn: sync.OnceFunc(func() {
			log.Warn("the request plane listens beyond this machine without TLS, or takes any caller: give --rpc-tls-cert and --rpc-tls-key, and --rpc-tls-ca or --rpc-token-file", "addr", at.listen)
		})}
	}
	p.RPC = &rpc.SchemeMux{Plane: serving, ByScheme: planes}
	return p.openBulk(cfg, xfer.TCPConfig{Config: xfer.Config{Token: token}, ServerTLS: server, ClientTLS: client}, log)
}

// unguardedPlane warns when it serves: workers and routers do from their start, frontends from the first object that
// they lend.
type unguardedPlane struct {
	rpc.Plane
	warn func()
}

// Serve implements rpc.Plane.
func (p *unguardedPlane) Serve(ctx context.Context, addr string, h rpc.Handler, ready func(addr string)) error {
	p.warn()
	return p.Plane.Serve(ctx, addr, h, ready)
}

// loadTLS returns the TLS configurations of a plane for serving and making connections; nil is without TLS. With
// authorities, a server requires certificates which they signed.
func loadTLS(plane, cert, key, ca string, least uint16) (server, client *tls.Config, err error) {
	own, err := config.LoadCertificate(plane+"-tls-cert", cert, key)
	if err != nil {
		return nil, nil, err
	}
	roots, err := config.LoadAuthorities(plane+"-tls-ca", ca)
	if err != nil {
		return nil, nil, err
	}
	if len(own) > 0 {
		server = &tls.Config{MinVersion: least, Certificates: own}
		if roots != nil {
			server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, roots
		}
	}
	if roots != nil || len(own) > 0 {
		client = &tls.Config{MinVersion: least, RootCAs: roots, Certificates: own}
	}
	return server, client, nil
}
