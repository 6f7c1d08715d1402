package xfer

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Transport is a way of moving bytes. The numbers are part of the wire format: append only.
type Transport uint8

// The transports.
const (
	Mem Transport = 1 + iota // within a process
	Shm                      // shared memory of one host
	TCP
	UCX // whatever the library UCX finds: RDMA, or TCP
)

// precedes reports whether t is likely to be faster than u.
func (t Transport) precedes(u Transport) bool {
	if t == UCX || u == UCX { // it was added last
		return t != u && (u == TCP || t != TCP && u == UCX)
	}
	return t < u
}

// String returns the name of t, for logs and metrics.
func (t Transport) String() string {
	switch t {
	case 0:
		return "none"
	case Mem:
		return "mem"
	case Shm:
		return "shm"
	case TCP:
		return "tcp"
	case UCX:
		return "ucx"
	default:
		return fmt.Sprintf("transport %d", uint8(t))
	}
}

// OwnerAddress is a place where a writer reaches an owner.
type OwnerAddress struct {
	Transport Transport
	Address   string // "host:port" for TCP and UCX, otherwise opaque
}

// Scope names the process or the host within which writers reach the owner in this way; "" is anywhere. Two processes
// which have addresses of one transport and one scope reach each other by it.
func (a OwnerAddress) Scope() string {
	switch a.Transport {
	case Mem:
		return a.Address
	case Shm:
		host, _, _ := strings.Cut(a.Address, "/")
		return host
	}
	return ""
}

// transferID names a transfer. Only processes which have its descriptor know it.
type transferID [16]byte

// Descriptor tells a writer where to send the bytes of one transfer. It is good once, and a
// secret: any process that has it, and the plane's token, can fulfil the transfer.
type Descriptor struct {
	epoch uint64 // one life of the owner
	id    transferID
	// Size is the number of bytes which the owner expects.
	Size int64
	// Lease is how long the writer may be silent.
	Lease time.Duration
	// Endpoints are the ways to the owner, the fastest first.
	Endpoints []OwnerAddress
}

// Limits of an encoded descriptor.
const (
	maxEndpoints = 8
	maxAddress   = 512
	// MaxDescriptor bounds an encoded descriptor, in bytes.
	MaxDescriptor = 8 << 10
)

const descriptorVersion = 1

// descriptorHead is the size of the fixed part: version, epoch, id, size, lease, endpoints.
const descriptorHead = 1 + 8 + 16 + 8 + 4 + 1

// String describes d without its secret.
func (d Descriptor) String() string {
	return fmt.Sprintf("transfer of %d bytes by %v", d.Size, d.Endpoints)
}

// endpoint returns the address of d for t.
func (d *Descriptor) endpoint(t Transport) (string, bool) {
	for _, e := range d.Endpoints {
		if e.Transport == t {
			return e.Address, true
		}
	}
	return "", false
}

// AppendBinary appends d as docs/format/xfer.md has it.
func (d Descriptor) AppendBinary(dst []byte) ([]byte, error) {
	dst = append(dst, descriptorVersion)
	dst = binary.LittleEndian.AppendUint64(dst, d.epoch)
	dst = append(dst, d.id[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(d.Size))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(d.Lease.Milliseconds()))
	if len(d.Endpoints) > maxEndpoints {
		return nil, fmt.Errorf("encode descriptor: %d endpoints", len(d.Endpoints))
	}
	dst = append(dst, uint8(len(d.Endpoints)))
	for _, e := range d.Endpoints {
		if len(e.Address) > maxAddress {
			return nil, fmt.Errorf("encode descriptor: an address of %d bytes", len(e.Address))
		}
		dst = append(dst, uint8(e.Transport))
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.Address)))
		dst = append(dst, e.Address...)
	}
	return dst, nil
}

var errShortDescriptor = errors.New("decode descriptor: it is cut off")

// DecodeDescriptor decodes a descriptor. Bytes after the last endpoint are additions of later
// builds, and skipped.
func DecodeDescriptor(b []byte) (Descriptor, error) {
	var d Descriptor
	switch {
	case len(b) > MaxDescriptor:
		return d, fmt.Errorf("decode descriptor: %d bytes, at most %d are allowed", len(b), MaxDescriptor)
	case len(b) > 0 && b[0] != descriptorVersion:
		return d, fmt.Errorf("decode descriptor: version %d, this build reads %d", b[0], descriptorVersion)
	case len(b) < descriptorHead:
		return d, errShortDescriptor
	}
	d.epoch = binary.LittleEndian.Uint64(b[1:])
	copy(d.id[:], b[9:])
	size := binary.LittleEndian.Uint64(b[25:])
	if size == 0 || size > MaxSize {
		return d, fmt.Errorf("decode descriptor: a transfer of %d bytes", size)
	}
	d.Size = int64(size)
	d.Lease = time.Duration(binary.LittleEndian.Uint32(b[33:])) * time.Millisecond
	n := int(b[37])
	if n > maxEndpoints {
		return d, fmt.Errorf("decode descriptor: %d endpoints, at most %d are allowed", n, maxEndpoints)
	}
	b = b[descriptorHead:]
	for range n {
		if len(b) < 3 {
			return d, errShortDescriptor
		}
		length := int(binary.LittleEndian.Uint16(b[1:]))
		if length > maxAddress {
			return d, fmt.Errorf("decode descriptor: an address of %d bytes, at most %d are allowed", length, maxAddress)
		}
		if len(b) < 3+length {
			return d, errShortDescriptor
		}
		d.Endpoints = append(d.Endpoints, OwnerAddress{Transport(b[0]), string(b[3 : 3+length])})
		b = b[3+length:]
	}
	return d, nil
}

func newTransferID() (id transferID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// newEpoch returns a number for one life of an owner, never 0.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) | 1
}
