package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// grpcPlane streams over grpc-go, with a codec for bytes, so that protobuf does not count, and with the windows of
// flow control set: without, grpc-go estimates them while it runs, and pings for each estimate.
type grpcPlane struct{}

// The windows of flow control, in bytes: the least that grpc-go takes for a stream, which holds a thousand frames
// of these loads, and for the connection enough that it never stops the others.
const (
	streamWindow     = 64 << 10
	connectionWindow = 64 << 20
)

// rawCodec is that codec, for messages of type *[]byte. Buffers come from grpc-go's pool, as the buffers of its
// own protobuf codec do; the pool makes small ones anew.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	// A copy, because grpc-go may send it later.
	return mem.BufferSlice{mem.Copy(*v.(*[]byte), mem.DefaultBufferPool())}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	to := v.(*[]byte)
	n := data.Len()
	if cap(*to) < n {
		*to = make([]byte, n)
	}
	*to = (*to)[:n]
	data.CopyTo(*to)
	return nil
}

var generateStream = grpc.StreamDesc{StreamName: "Generate", ServerStreams: true}

func (grpcPlane) serveStreams(told func(string) error, until <-chan struct{}, stream func(func([]byte) error) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	desc := generateStream
	desc.Handler = func(_ any, s grpc.ServerStream) error {
		var request []byte
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		return stream(func(frame []byte) error { return s.SendMsg(&frame) })
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connectionWindow))
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: "bench", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}}, nil)
	if err := told(l.Addr().String()); err != nil {
		return err
	}
	go func() {
		<-until
		srv.Stop()
	}()
	return srv.Serve(l)
}

func (grpcPlane) dialStreams(addr string) (func(context.Context, func([]byte) error) error, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.StaticMethod()),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connectionWindow))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, recv func([]byte) error) error {
		s, err := conn.NewStream(ctx, &generateStream, "/bench/Generate")
		if err != nil {
			return err
		}
		var request []byte
		if err := s.SendMsg(&request); err != nil {
			return err
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
		var frame []byte
		for {
			if err := s.RecvMsg(&frame); err != nil {
				return err
			}
			if err := recv(frame); err != nil {
				return err
			}
		}
	}, nil
}
