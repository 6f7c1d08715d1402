package main

import (
	"context"

	"penstock/internal/plane/rpc"
)

type tcpPlane struct{}

func (tcpPlane) serveStreams(told func(string) error, until <-chan struct{}, stream func(func([]byte) error) error) error {
	p, err := rpc.NewTCPPlane(rpc.TCPConfig{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-until
		cancel()
	}()
	var tellErr error
	err = p.Serve(ctx, "", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		return stream(send)
	}, func(addr string) { tellErr = told(addr) })
	if err != nil {
		return err
	}
	return tellErr
}

func (tcpPlane) dialStreams(addr string) (func(context.Context, func([]byte) error) error, error) {
	p, err := rpc.NewTCPPlane(rpc.TCPConfig{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, recv func([]byte) error) error {
		return p.Call(ctx, addr, "generate", nil, recv)
	}, nil
}
