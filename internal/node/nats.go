package node

import (
	"log/slog"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/plane/natsd"
)

// natsServer is the embedded server with this process's connection to it.
type natsServer struct {
	server *natsd.Server
	conn   *nats.Conn
}

func startNATS(cfg *config.Config, log *slog.Logger) (*natsServer, error) {
	n := &natsServer{}
	var err error
	n.server, err = natsd.Start(natsd.Config{DataDir: cfg.DataDir, Listen: cfg.NATSListen, Log: log})
	if err != nil {
		return n, err
	}
	n.conn, err = n.server.Connect("penstock")
	return n, err
}

// URL is where others reach the server; "" if it is not open to them.
func (n *natsServer) URL() string { return n.server.URL() }

// Close closes the connection, then the server, as far as they were opened.
func (n *natsServer) Close() error {
	var err error
	if n.conn != nil {
		n.conn.Close()
	}
	if n.server != nil {
		err = n.server.Close()
	}
	return err
}
