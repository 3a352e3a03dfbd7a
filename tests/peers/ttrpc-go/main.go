// The Go implementation of ttrpc as a peer for the agent's own: a server and a client for tests.
//
//	ttrpc-go server SOCKET    prints "ready", serves until killed
//	ttrpc-go client SOCKET    takes one JSON call a line on stdin, prints one JSON result a line
//	ttrpc-go agent SOCKET     a stand-in for kata-agent: see agent.go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: ttrpc-go server|client|agent SOCKET"))
	}
	run := map[string]func(string) error{"server": serve, "client": call, "agent": serveAgent}[os.Args[1]]
	if run == nil {
		fail(fmt.Errorf("unknown mode %q", os.Args[1]))
	}
	if err := run(os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serve(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService("peer.Go", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Echo":      method(func(_ context.Context, value []byte) ([]byte, error) { return value, nil }),
		"Sleep":     method(sleep),
		"Fail":      method(failWith),
		"Remaining": method(remaining),
		"Fill":      method(fill),
		"Exit":      method(func(context.Context, []byte) ([]byte, error) { os.Exit(0); return nil, nil }),
	}})
	fmt.Println("ready")
	return server.Serve(context.Background(), listener)
}

// method makes a ttrpc method of a function on the content of a BytesValue.
func method(run func(context.Context, []byte) ([]byte, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var request wrapperspb.BytesValue
		if err := unmarshal(&request); err != nil {
			return nil, err
		}
		value, err := run(ctx, request.GetValue())
		if err != nil {
			return nil, err
		}
		return wrapperspb.Bytes(value), nil
	}
}

// sleep waits for as many milliseconds as the value says, then returns the value.
func sleep(_ context.Context, value []byte) ([]byte, error) {
	milliseconds, err := strconv.Atoi(string(value))
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	return value, nil
}

// failWith answers "CODE MESSAGE" with that status.
func failWith(_ context.Context, value []byte) ([]byte, error) {
	code, message, _ := strings.Cut(string(value), " ")
	number, err := strconv.Atoi(code)
	if err != nil {
		return nil, err
	}
	return nil, status.Error(codes.Code(number), message)
}

// remaining tells how many milliseconds the caller will wait, or "none".
func remaining(ctx context.Context, _ []byte) ([]byte, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return []byte("none"), nil
	}
	return []byte(strconv.FormatInt(time.Until(deadline).Milliseconds(), 10)), nil
}

// fill returns as many bytes as the value says.
func fill(_ context.Context, value []byte) ([]byte, error) {
	size, err := strconv.Atoi(string(value))
	if err != nil {
		return nil, err
	}
	return make([]byte, size), nil
}

type request struct {
	ID        int
	Service   string
	Method    string
	Payload   []byte // an encoded protobuf message
	TimeoutMS int
}

type result struct {
	ID      int
	Payload []byte
	Code    int
	Message string
	Closed  bool
}

// call runs each request in a goroutine of its own over one connection, started in the order of the
// lines; results come in the order in which they are known.
func call(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	var (
		running sync.WaitGroup
		output  sync.Mutex
		encoder = json.NewEncoder(os.Stdout)
		lines   = bufio.NewScanner(os.Stdin)
	)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var one request
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return err
		}
		running.Add(1)
		go func() {
			defer running.Done()
			answer := one.run(client)
			output.Lock()
			defer output.Unlock()
			if err := encoder.Encode(answer); err != nil {
				fail(err)
			}
		}()
	}
	running.Wait()
	return lines.Err()
}

func (r request) run(client *ttrpc.Client) result {
	ctx := context.Background()
	if r.TimeoutMS != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.TimeoutMS)*time.Millisecond)
		defer cancel()
	}
	// An empty message keeps fields it does not know as they are: bytes in, bytes out.
	var in, out emptypb.Empty
	in.ProtoReflect().SetUnknown(r.Payload)
	err := client.Call(ctx, r.Service, r.Method, &in, &out)
	answer := result{ID: r.ID, Payload: out.ProtoReflect().GetUnknown()}
	if err != nil {
		answer.Closed = errors.Is(err, ttrpc.ErrClosed)
		answer.Code = int(status.Code(err))
		answer.Message = err.Error()
	}
	return answer
}
