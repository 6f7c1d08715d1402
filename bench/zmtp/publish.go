package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	zmq "github.com/pebbe/zmq4"

	"penstock/internal/zmtp"
)

const topic = "kv@10.0.0.1:8000@model"

// highWater is how many messages are queued for the subscriber, on both sides.
const highWater = 10_000

// runPublisher prints its address, and sends count messages to the first subscriber.
func publish(kind string, size, count int) error {
	if kind == "libzmq" {
		return publishLibzmq(size, count)
	}
	ep, err := zmtp.ParseEndpoint("tcp://127.0.0.1:0")
	if err != nil {
		return err
	}
	p, err := zmtp.ListenPub(ep, zmtp.Options{HighWater: highWater, QueueBytes: 64 << 20})
	if err != nil {
		return err
	}
	fmt.Println(p.Addr())
	if err := p.AwaitSubscribers(context.Background(), 1); err != nil {
		return err
	}
	number, payload := make([]byte, 8), make([]byte, size)
	for n := range count {
		binary.BigEndian.PutUint64(number, uint64(n))
		for {
			lost := p.Dropped()
			p.Send([]byte(topic), number, payload)
			if p.Dropped() == lost {
				break
			}
			runtime.Gosched() // its queue is full: a Pub never blocks, so this does
		}
	}
	return errors.Join(awaitEnd(), p.Close())
}

func publishLibzmq(size, count int) error {
	s, err := zmq.NewSocket(zmq.XPUB)
	if err != nil {
		return err
	}
	err = errors.Join(s.SetSndhwm(highWater), s.SetXpubNodrop(true), s.SetLinger(-1), s.Bind("tcp://127.0.0.1:*"))
	if err != nil {
		return err
	}
	addr, err := s.GetLastEndpoint()
	if err != nil {
		return err
	}
	fmt.Println(addr)
	if _, err := s.RecvBytes(0); err != nil { // the subscription
		return err
	}
	number, payload := make([]byte, 8), make([]byte, size)
	for n := range count {
		binary.BigEndian.PutUint64(number, uint64(n))
		for _, part := range []struct {
			b    []byte
			flag zmq.Flag
		}{{[]byte(topic), zmq.SNDMORE}, {number, zmq.SNDMORE}, {payload, 0}} {
			if _, err := s.SendBytes(part.b, part.flag); err != nil {
				return err
			}
		}
	}
	return errors.Join(awaitEnd(), s.Close())
}
