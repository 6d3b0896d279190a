// Package protocol is the messages between the governor and the governed library. intercept/governor/protocol.h has the same
// in C, and a test compares the two.
package protocol

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const (
	// Socket is the name of the governor's socket in a claim's directory.
	Socket = "governor"
	// Version is the version of the messages.
	Version = 1
	// MaxGPUs is how many GPUs a page has room for.
	MaxGPUs = 16
	// UUIDSize is the room for a GPU's UUID in a HELLO.
	UUIDSize = 48
	// Size is the size of a message.
	Size = 64
	// MaxSize is the size of the longest packet.
	MaxSize = Size + MaxGPUs*UUIDSize
	// Asks is the flag of a Revoke that has to be answered.
	Asks = 1
)

// Kind is the kind of a message.
type Kind uint16

// The kinds; intercept/governor/protocol.h says what their fields mean.
const (
	Hello Kind = iota + 1
	Welcome
	Want
	Grant
	Revoke
	Ending
	Drained
	Idle
	Bye
	Refused
)

// Message is one message.
type Message struct {
	Version uint16
	Kind    Kind
	GPU     uint32
	Turn    uint64
	Flags   uint64
	Value   [5]uint64
}

// Encode returns the packet of a message.
func (m Message) Encode() []byte {
	m.Version = Version
	packet, err := binary.Append(make([]byte, 0, Size), binary.LittleEndian, m)
	if err != nil {
		panic(err) // the type has a fixed size
	}
	return packet
}

// Decode decodes a packet. The UUIDs are those of a HELLO.
func Decode(packet []byte) (m Message, uuids []string, err error) {
	if len(packet) < Size {
		return m, nil, fmt.Errorf("the packet has %d bytes, and a message %d", len(packet), Size)
	}
	m = Message{
		Version: binary.LittleEndian.Uint16(packet), Kind: Kind(binary.LittleEndian.Uint16(packet[2:])),
		GPU: binary.LittleEndian.Uint32(packet[4:]), Turn: binary.LittleEndian.Uint64(packet[8:]),
		Flags: binary.LittleEndian.Uint64(packet[16:]),
	}
	for i := range m.Value {
		m.Value[i] = binary.LittleEndian.Uint64(packet[24+8*i:])
	}
	if m.Version != Version {
		return m, nil, fmt.Errorf("the message has version %d, and this governor knows version %d", m.Version, Version)
	}
	rest := packet[Size:]
	if m.Kind == Hello && (m.GPU > MaxGPUs || len(rest) != int(m.GPU)*UUIDSize) || m.Kind != Hello && len(rest) > 0 {
		return m, nil, fmt.Errorf("a message of kind %d for %d GPUs has %d bytes", m.Kind, m.GPU, len(packet))
	}
	for ; len(rest) > 0; rest = rest[UUIDSize:] {
		name, _, _ := bytes.Cut(rest[:UUIDSize], []byte{0})
		uuids = append(uuids, string(name))
	}
	return m, uuids, nil
}
