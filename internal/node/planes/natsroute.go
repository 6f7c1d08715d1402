package planes

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"

	"penstock/internal/config"
)

// natsRoute is the address of this host from which it reaches the fleet's NATS server. Other processes of the
// fleet reach that server too, so it is the best guess at the address by which they reach this host.
type natsRoute struct {
	ip  netip.Addr // invalid if there is none
	why string     // where ip comes from, or why there is none
	// shared means that other hosts may use the server.
	shared bool
}

// findNATSRoute finds the natsRoute of a process whose NATS connection is open.
func (p *Set) findNATSRoute(cfg *config.Loaded) (natsRoute, error) {
	switch {
	case p.Server != nil && config.IsAllInterfaces(cfg.NATS.Listen):
		return natsRoute{why: "the embedded NATS server listens on all interfaces, which names none", shared: true}, nil
	case p.Server != nil:
		u, err := url.Parse(p.Server.URL())
		if err != nil {
			return natsRoute{}, err
		}
		ip, _ := netip.ParseAddr(u.Hostname()) // invalid if the server does not listen
		return natsRoute{ip, "the embedded NATS server listens there", ip.IsValid() && !ip.IsLoopback()}, nil
	case p.Conn == nil:
		return natsRoute{why: "there is no NATS server to reach"}, nil
	}
	local, err := netip.ParseAddrPort(p.Conn.LocalAddr())
	if err != nil { // the connection has just failed
		return natsRoute{}, fmt.Errorf("the address from which the NATS server is reached: %w", err)
	}
	ip := local.Addr().Unmap()
	if ip.IsLoopback() {
		return natsRoute{ip: ip, why: "the NATS server is on this host"}, nil
	}
	return natsRoute{ip, "the NATS server is reached from there", true}, nil
}

// isReachableRemotely reports whether other hosts reach this one at ip.
func (r natsRoute) isReachableRemotely() bool { return r.ip.IsValid() && !r.ip.IsLoopback() }

// planeAddr is where a plane listens, and the address it advertises.
type planeAddr struct {
	listen    string // HOST:PORT
	advertise string // HOST or HOST:PORT; "" is the listen address
}

// completeAddr completes the settings of a plane. An empty listen address becomes a free port at the route's
// address, and a plane that listens on all interfaces advertises the route's address. It fails if others
// could not use that address.
func (r natsRoute) completeAddr(setting string, want planeAddr) (planeAddr, error) {
	everywhere := config.IsAllInterfaces(want.listen) && want.advertise == ""
	switch {
	case want.listen != "" && !everywhere:
		return want, nil
	case want.listen == "" && !r.isReachableRemotely():
		return planeAddr{"127.0.0.1:0", want.advertise}, nil
	case !r.isReachableRemotely():
		return want, nil // the plane reports what is missing
	case r.ip.Zone() != "" || r.ip.IsLinkLocalUnicast():
		return want, fmt.Errorf("%s: the NATS server is reached from %v, an address that is good on one link alone; give --%s HOST:0 with an address at which others reach this host", setting, r.ip, setting)
	case want.listen == "":
		return planeAddr{net.JoinHostPort(r.ip.String(), "0"), want.advertise}, nil
	}
	return planeAddr{want.listen, r.ip.String()}, nil
}

// choosePlaneAddr returns where a plane of this process serves. It logs the choice where the settings leave
// it open, and a warning where other hosts cannot reach it.
func (p *Set) choosePlaneAddr(cfg *config.Loaded, setting string, want planeAddr, log *slog.Logger) (planeAddr, error) {
	r, err := p.findNATSRoute(cfg)
	if err != nil {
		return want, fmt.Errorf("%s: %w", setting, err)
	}
	at, err := r.completeAddr(setting, want)
	switch {
	case err != nil:
		return at, err
	case r.shared && config.IsLoopback(at.listen) && at.advertise == "":
		log.Warn("others are told a loopback address, which other hosts cannot reach: give an address of this host, or have it chosen by --nats with an address that all hosts reach",
			"setting", setting, "addr", at.listen, "because", r.why)
	case at != want:
		log.Info("address chosen", "setting", setting, "addr", at.listen, "advertise", at.advertise, "because", r.why)
	}
	return at, nil
}
