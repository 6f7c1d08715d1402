package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Open checks a snapshot and returns what it covers and the sections which knows accepts, with data which
// aliases the argument. It omits other sections if they are optional. A required one is an error, as is any
// deviation from the output of a Writer.
func Open(data []byte, knows func(Section) bool) (Header, []Section, error) {
	h, rest, err := openHeader(data)
	if err != nil {
		return Header{}, nil, fmt.Errorf("open snapshot: %w", err)
	}
	all, err := openSections(data, rest)
	if err != nil {
		return Header{}, nil, fmt.Errorf("open snapshot: %w", err)
	}
	known := all[:0]
	for _, s := range all {
		switch {
		case knows(s):
			known = append(known, s)
		case s.Need == Required:
			return Header{}, nil, fmt.Errorf("open snapshot: its section %v of version %d is required and not known here; a newer build wrote it", s.Kind, s.Version)
		}
	}
	return h, known, nil
}

// PeekHeader returns what a snapshot covers; data must have at least its first 40 bytes.
func PeekHeader(data []byte) (Header, error) {
	h, _, err := openHeader(data)
	if err != nil {
		return Header{}, fmt.Errorf("open snapshot: %w", err)
	}
	return h, nil
}

func openHeader(data []byte) (h Header, rest []byte, err error) {
	switch {
	case len(data) < headerSize:
		return h, nil, fmt.Errorf("it has %d bytes, its header alone %d", len(data), headerSize)
	case string(data[:len(magic)]) != magic:
		return h, nil, errors.New("it does not begin like a snapshot")
	}
	head := data[:headerSize]
	// The version is read before the checksum, because another version may place the checksum elsewhere.
	if v := binary.LittleEndian.Uint16(head[8:]); v != Version {
		return h, nil, fmt.Errorf("it is of version %d, this build reads %d", v, Version)
	}
	if binary.LittleEndian.Uint32(head[36:]) != checksum(head[:36]) {
		return h, nil, errors.New("its header is damaged")
	}
	if head[10] != 0 || head[11] != 0 {
		return h, nil, errors.New("reserved bytes of its header are set")
	}
	h.StreamID = binary.LittleEndian.Uint64(head[12:])
	h.Seq = binary.LittleEndian.Uint64(head[20:])
	h.Taken = int64(binary.LittleEndian.Uint64(head[28:]))
	return h, data[headerSize:], nil
}

// openSections reads everything after the header of data.
func openSections(data, rest []byte) (all []Section, err error) {
	for {
		if len(rest) < endSize {
			return nil, errors.New("its end is missing")
		}
		if string(rest[:len(endMark)]) == endMark {
			break
		}
		if len(all) == maxSections {
			return nil, fmt.Errorf("it has more than %d sections", maxSections)
		}
		var s Section
		if s, rest, err = openSection(rest); err != nil {
			return nil, err
		}
		for _, o := range all {
			if o.Kind == s.Kind {
				return nil, fmt.Errorf("it has two sections %v", s.Kind)
			}
		}
		all = append(all, s)
	}
	switch {
	case len(rest) > endSize:
		return nil, fmt.Errorf("%d bytes follow its end", len(rest)-endSize)
	case binary.LittleEndian.Uint32(rest[8:]) != uint32(len(all)):
		return nil, errors.New("sections are missing")
	case binary.LittleEndian.Uint32(rest[12:]) != checksum(data[:len(data)-4]):
		return nil, errors.New("it is damaged")
	}
	return all, nil
}

func openSection(data []byte) (s Section, rest []byte, err error) {
	if len(data) < frameSize {
		return s, nil, errors.New("its end is missing")
	}
	frame := data[:frameSize]
	if binary.LittleEndian.Uint32(frame[20:]) != checksum(frame[:20]) {
		return s, nil, errors.New("the frame of a section is damaged")
	}
	s.Kind, s.Version = SectionKind(binary.LittleEndian.Uint16(frame)), binary.LittleEndian.Uint16(frame[2:])
	size := binary.LittleEndian.Uint64(frame[8:])
	data = data[frameSize:]
	switch {
	case s.Kind == 0:
		return s, nil, errors.New("it has a section of kind 0, which there is not")
	case frame[4] > required || frame[5] != 0 || frame[6] != 0 || frame[7] != 0:
		return s, nil, fmt.Errorf("section %v has flags of which the meaning is not known here", s.Kind)
	case size > uint64(len(data)):
		return s, nil, fmt.Errorf("section %v has %d bytes, of which %d are there", s.Kind, size, len(data))
	}
	s.Data = data[:size:size]
	if binary.LittleEndian.Uint32(frame[16:]) != checksum(s.Data) {
		return s, nil, fmt.Errorf("section %v is damaged", s.Kind)
	}
	if frame[4] == required {
		s.Need = Required
	}
	return s, data[size:], nil
}
