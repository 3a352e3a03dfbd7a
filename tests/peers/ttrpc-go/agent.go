package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The methods of grpc.AgentService (Kata Containers, src/libs/protocols/protos/agent.proto).
var agentMethods = strings.Fields(`CreateContainer StartContainer RemoveContainer ExecProcess SignalProcess
	WaitProcess UpdateContainer UpdateEphemeralMounts StatsContainer PauseContainer ResumeContainer
	RemoveStaleVirtiofsShareMounts GetDiagnosticData WriteStdin ReadStdout ReadStderr CloseStdin TtyWinResize
	UpdateInterface UpdateRoutes ListInterfaces ListRoutes AddARPNeighbors GetIPTables SetIPTables GetMetrics
	MemAgentMemcgSet MemAgentCompactSet CreateSandbox DestroySandbox OnlineCPUMem ReseedRandomDev
	GetGuestDetails MemHotplugByProbe SetGuestDateTime CopyFile GetOOMEvent AddSwap AddSwapPath GetVolumeStats
	ResizeVolume SetPolicy`)

// seen is one call as it reached the agent. Fields is what a Go decoder makes of the payload, in no order that
// protobuf does not promise.
type seen struct {
	Method  string
	Payload []byte
	Fields  any
}

// serveAgent answers every method with the payload it got, prints each call as a line of JSON, and does as the
// container id says: "fail …" is refused with status 9, "slow …" takes a second, "die …" ends the process.
func serveAgent(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	var output sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	fmt.Println("ready")
	methods := map[string]ttrpc.Method{}
	for _, name := range agentMethods {
		methods[name] = func(_ context.Context, unmarshal func(any) error) (any, error) {
			var message emptypb.Empty
			if err := unmarshal(&message); err != nil {
				return nil, err
			}
			payload := message.ProtoReflect().GetUnknown()
			fields, id, err := decode(name, payload)
			if err != nil {
				return nil, status.Error(codes.InvalidArgument, err.Error())
			}
			output.Lock()
			err = encoder.Encode(seen{Method: name, Payload: payload, Fields: fields})
			output.Unlock()
			if err != nil {
				return nil, err
			}
			switch word, _, _ := strings.Cut(id, " "); word {
			case "fail":
				return nil, status.Error(codes.FailedPrecondition, "the stand-in refuses "+id)
			case "slow":
				time.Sleep(time.Second)
			case "die":
				os.Exit(0)
			}
			return &message, nil
		}
	}
	server.RegisterService("grpc.AgentService", &ttrpc.ServiceDesc{Methods: methods})
	return server.Serve(context.Background(), listener)
}

// decode reads CreateContainer deeply, and of other messages the first string.
func decode(method string, payload []byte) (fields map[string]any, id string, err error) {
	deep := map[string]func([]byte) (any, error){}
	if method == "CreateContainer" {
		deep["6"] = func(spec []byte) (any, error) {
			return record(spec, map[string]func([]byte) (any, error){
				"5": func(mount []byte) (any, error) { return record(mount, nil) },
				"7": func(entry []byte) (any, error) { return record(entry, nil) },
			})
		}
	}
	fields, err = record(payload, deep)
	if err != nil {
		return nil, "", err
	}
	if values, ok := fields["1"].([]any); ok && len(values) > 0 {
		id, _ = values[0].(string)
	}
	return fields, id, nil
}

// record maps each field number to its values in order; the values of different fields may come in any order.
// Length-delimited ones are text, or hexadecimal after a "\x00" where they are no UTF-8.
func record(message []byte, deep map[string]func([]byte) (any, error)) (map[string]any, error) {
	fields := map[string]any{}
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		message = message[size:]
		size = protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		value := message[:size]
		message = message[size:]
		key := fmt.Sprint(number)
		var decoded any = fmt.Sprintf("\x00%d:%x", kind, value)
		if kind == protowire.BytesType {
			content, length := protowire.ConsumeBytes(value)
			if length < 0 {
				return nil, errors.New("a field's length is wrong")
			}
			if run := deep[key]; run != nil {
				inner, err := run(content)
				if err != nil {
					return nil, err
				}
				decoded = inner
			} else {
				decoded = text(content)
			}
		}
		values, _ := fields[key].([]any)
		fields[key] = append(values, decoded)
	}
	return fields, nil
}

func text(content []byte) string {
	shown, err := json.Marshal(string(content))
	var back string
	if err == nil && json.Unmarshal(shown, &back) == nil && back == string(content) {
		return back
	}
	return fmt.Sprintf("\x00%x", content)
}
