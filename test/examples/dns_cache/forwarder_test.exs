# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.ForwarderTest do
  # Packets of all kinds, sent to a forwarder whose upstream is a function of the question.
  use ExUnit.Case, async: true

  import ExternalService.Callers, only: [soon: 1]

  alias DnsCache.{Authority, Forwarder, LocalCache, Message, Upstream}

  @moduletag :capture_log

  @question {~c"www.example.test", :a, :in}
  @malformed 1
  @server_failure 2
  @not_implemented 4

  defmodule Scripted do
    @behaviour DnsCache.Forwarder
    @impl true
    def resolve(answer, question), do: answer.(question)
  end

  setup context do
    cache = Module.concat(__MODULE__, "Cache#{context.line}")
    tasks = Module.concat(__MODULE__, "Tasks#{context.line}")
    start_supervised!({LocalCache, name: cache})
    start_supervised!({Task.Supervisor, name: tasks})
    clock = :atomics.new(1, [])

    forwarder =
      start_supervised!(
        {Forwarder,
         name: context.test,
         cache: {LocalCache, cache},
         upstream: {Scripted, Map.get(context, :upstream, &__MODULE__.answer/1)},
         tasks: tasks,
         clock: fn -> :atomics.get(clock, 1) end}
      )

    {:ok, socket} = :gen_udp.open(0, [:binary, ip: {127, 0, 0, 1}, active: false])
    :ok = :gen_udp.connect(socket, {127, 0, 0, 1}, Forwarder.port(forwarder))
    {:ok, forwarder: forwarder, socket: socket, clock: clock, cache: cache}
  end

  def answer({name, type, _class} = question) do
    record = Message.record(name, type, 300, {192, 0, 2, 80})
    {:ok, Message.encode(Message.new(response?: true, questions: [question], answers: [record]))}
  end

  def crash(_question), do: raise("no upstream")
  def fail(_question), do: {:error, :timeout}
  def babble(_question), do: {:ok, "babble"}
  def answer_another(_question), do: answer({~c"other.test", :a, :in})

  defp query(id, fields \\ []),
    do: Message.encode(Message.new([id: id, questions: [@question]] |> Keyword.merge(fields)))

  defp exchange(socket, packet) do
    :ok = :gen_udp.send(socket, packet)
    assert {:ok, {_ip, _port, reply}} = :gen_udp.recv(socket, 0, 5_000)
    {:ok, message} = Message.decode(reply)
    message
  end

  # What follows is answered, and nothing was before it.
  defp ignored?(socket, packet) do
    :ok = :gen_udp.send(socket, packet)
    exchange(socket, query(4_242)).id == 4_242
  end

  describe "a query" do
    test "is answered", %{socket: socket} do
      assert %{id: 5, response?: true, rcode: 0, questions: [@question], answers: [record]} = exchange(socket, query(5))
      assert Message.data(record) == {192, 0, 2, 80}
    end

    test "that comes again later gets the time that is left", %{socket: socket, clock: clock, cache: cache} do
      assert %{answers: [first]} = exchange(socket, query(1))
      assert Message.ttl(first) == 300
      soon(fn -> LocalCache.count(cache) == 1 end)
      :atomics.add(clock, 1, 100_000)
      assert %{answers: [second]} = exchange(socket, query(2))
      assert Message.ttl(second) == 200
      assert LocalCache.hits(cache) == 1
    end

    test "of the same name in other letters gets its own letters back", %{socket: socket} do
      exchange(socket, query(1))
      other = {~c"WWW.Example.Test", :a, :in}
      assert exchange(socket, query(2, questions: [other])).questions == [other]
    end

    @tag upstream: &__MODULE__.fail/1
    test "that upstream does not answer is told so", %{socket: socket} do
      assert %{id: 5, rcode: @server_failure, questions: [@question]} = exchange(socket, query(5))
    end

    @tag upstream: &__MODULE__.babble/1
    test "that upstream answers with nonsense is told so", %{socket: socket, cache: cache} do
      assert %{rcode: @server_failure} = exchange(socket, query(5))
      assert LocalCache.count(cache) == 0
    end

    @tag upstream: &__MODULE__.answer_another/1
    test "that upstream takes for another one is told so", %{socket: socket, cache: cache} do
      assert %{rcode: @server_failure} = exchange(socket, query(5))
      assert LocalCache.count(cache) == 0
    end

    @tag upstream: &__MODULE__.crash/1
    test "that crashes leaves the forwarder alone", %{socket: socket, forwarder: forwarder} do
      :ok = :gen_udp.send(socket, query(5))
      assert %{rcode: @not_implemented} = exchange(socket, query(6, opcode: :status))
      assert Process.alive?(forwarder)
    end
  end

  describe "a hostile packet" do
    test "that is a response is ignored", %{socket: socket} do
      assert ignored?(socket, query(5, response?: true))
    end

    test "that is too short for a header is ignored", %{socket: socket} do
      for size <- 0..11, do: assert(ignored?(socket, binary_part(query(5), 0, size)))
    end

    test "that ends early is malformed", %{socket: socket} do
      packet = query(5)

      for size <- 12..(byte_size(packet) - 1),
          do: assert(%{id: 5, rcode: @malformed} = exchange(socket, binary_part(packet, 0, size)))
    end

    test "that has no question, or two, is malformed", %{socket: socket} do
      assert %{id: 5, rcode: @malformed} = exchange(socket, query(5, questions: []))
      assert %{id: 6, rcode: @malformed} = exchange(socket, query(6, questions: [@question, @question]))
    end

    test "whose name points at itself is malformed", %{socket: socket} do
      assert %{rcode: @malformed} = exchange(socket, <<5::16, 0::16, 1::16, 0::48, 0xC00C::16, 1::16, 1::16>>)
    end

    test "that is no query is not implemented", %{socket: socket} do
      assert %{id: 5, rcode: @not_implemented} = exchange(socket, query(5, opcode: :status))
    end

    test "of the largest size there is does no harm", %{socket: socket} do
      assert %{id: 5, rcode: @malformed} = exchange(socket, query(5) <> :binary.copy(<<0>>, 65_000))
      assert %{id: 6, rcode: 0} = exchange(socket, query(6))
    end

    test "of random bytes does no harm", %{socket: socket, forwarder: forwarder} do
      :rand.seed(:exsss, {1, 2, 3})
      for size <- 1..500, do: :ok = :gen_udp.send(socket, :rand.bytes(size))
      # The socket may have dropped what came too fast, so ask until the answer is there.
      soon(fn ->
        :ok = :gen_udp.send(socket, query(4_242))
        match?({:ok, {_ip, _port, <<4_242::16, 1::1, _rest::bits>>}}, :gen_udp.recv(socket, 0, 100))
      end)

      assert Process.alive?(forwarder)
    end

    test "with a name of any bytes is a question like another", %{socket: socket} do
      name = <<3, 0, 32, 10, 5, "a.b\\c", 63>> <> :binary.copy(<<255>>, 63) <> <<0>>
      packet = <<5::16, 0::16, 1::16, 0::48>> <> name <> <<1::16, 1::16>>
      assert %{id: 5, rcode: 0, answers: [_record]} = exchange(socket, packet)
    end
  end

  describe "the upstream" do
    setup do
      start_supervised!(Upstream)
      on_exit(fn -> ExternalService.stop(Upstream) end)
      {:ok, authority: start_supervised!({Authority, %{{"www.example.test", :a} => {300, {192, 0, 2, 80}}}})}
    end

    test "is asked over UDP", %{authority: authority} do
      assert {:ok, packet} = Upstream.resolve(Authority.address(authority), @question)
      assert {:ok, %{questions: [@question], answers: [_record]}} = Message.decode(packet)
      assert Authority.asked(authority) == 1
    end

    test "that is not there is an error" do
      {:ok, socket} = :gen_udp.open(0, ip: {127, 0, 0, 1})
      {:ok, port} = :inet.port(socket)
      :ok = :gen_udp.close(socket)
      assert {:error, %ExternalService.RetriesExhausted{}} = Upstream.resolve({{127, 0, 0, 1}, port}, @question)
    end

    test "is not believed when the id is another one" do
      {:ok, server} = :gen_udp.open(0, [:binary, ip: {127, 0, 0, 1}, active: false])
      {:ok, port} = :inet.port(server)
      asker = Task.async(fn -> Upstream.resolve({{127, 0, 0, 1}, port}, @question) end)
      {:ok, {ip, from, <<id::16, rest::binary>>}} = :gen_udp.recv(server, 0, 5_000)
      :ok = :gen_udp.send(server, ip, from, <<id + 1::16, rest::binary>>)
      {:ok, <<_id::16, answer::binary>>} = answer(@question)
      :ok = :gen_udp.send(server, ip, from, <<id::16, answer::binary>>)
      assert Task.await(asker) == {:ok, <<id::16, answer::binary>>}
    end
  end
end
