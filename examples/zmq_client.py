"""zmq_client.py - a ZeroMQ client of inferd in Python: generate, streamed, and what else there is.

    pip install pyzmq protobuf grpcio-tools
    python -m grpc_tools.protoc -I proto --python_out=. inferd.proto     # makes inferd_pb2.py
    inferd serve MODEL --zmq-listen tcp://127.0.0.1:5555
    python examples/zmq_client.py tcp://127.0.0.1:5555 "Once upon a time"

CURVE: --server-key PUBLIC encrypts, with a fresh pair of client keys, or that of --client-secret SECRET.
"""
import argparse
import sys

import inferd_pb2 as pb
import zmq


class Client:
    """One connection. Answers of several requests may come mixed; `id` tells them apart."""

    def __init__(self, endpoint, api_key="", server_key="", client_secret="", timeout_s=60):
        self.context = zmq.Context.instance()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
        self.socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))  # a server that refused our keys leaves nobody to send to
        if server_key:
            public, secret = zmq.curve_keypair()
            if client_secret:
                secret = client_secret.encode()
                public = zmq.curve_public(secret)
            self.socket.curve_serverkey = server_key.encode()
            self.socket.curve_publickey, self.socket.curve_secretkey = public, secret
        self.socket.connect(endpoint)
        self.api_key, self.last_id, self.waiting = api_key, 0, []

    def send(self, **body):
        """Sends a Request with the given body (generate=pb.Generate(...), health=pb.HealthQuery(), ...); its id."""
        self.last_id += 1
        request = pb.Request(id=self.last_id, api_key=self.api_key, **body)
        self.socket.send(request.SerializeToString())
        return self.last_id

    def receive(self):
        """The next Response, of whichever request. zmq.Again after timeout_s without one."""
        while not self.waiting:
            self.waiting.extend(pb.Batch.FromString(self.socket.recv()).responses)
        return self.waiting.pop(0)

    def ask(self, **body):
        """Sends a request that has one Response, and gives that."""
        wanted = self.send(**body)
        while True:
            response = self.receive()
            if response.id == wanted:
                return response

    def generate(self, **fields):
        """Yields the Responses of one Generate, the last one being Done or Error."""
        wanted = self.send(generate=pb.Generate(**fields))
        while True:
            response = self.receive()
            if response.id != wanted:
                continue
            yield response
            if response.WhichOneof("body") in ("done", "error"):
                return

    def close(self):
        self.socket.close()


def main():
    parser = argparse.ArgumentParser(description="Go on with a text, over ZeroMQ.")
    parser.add_argument("endpoint")
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true", help="as a user's message in a conversation")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--server-key", default="", help="CURVE public key of the server")
    parser.add_argument("--client-secret", default="", help="CURVE secret key of this client")
    args = parser.parse_args()
    client = Client(args.endpoint, args.api_key, args.server_key, args.client_secret)
    text = args.prompt.encode()
    source = {"messages": [pb.ChatMessage(role="user", content=text)]} if args.chat else {"prompts": [text]}
    for response in client.generate(**source, max_tokens=args.max_tokens, temperature=args.temperature, stream=True):
        kind = response.WhichOneof("body")
        if kind == "chunk":
            sys.stdout.buffer.write(response.chunk.text)
            sys.stdout.flush()
        elif kind == "error":
            sys.exit(f"\n{response.error.code}: {response.error.message}")
        elif kind == "done":
            usage = response.done.usage
            print(f"\n[{usage.prompt_tokens} tokens in, {usage.completion_tokens} out]", file=sys.stderr)


if __name__ == "__main__":
    main()
