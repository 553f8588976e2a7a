# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.RemoteCacheTest do
  # Each test has a real memcached of its own.
  use ExUnit.Case, async: true

  alias DnsCache.{Answer, Connections, Daemon, Memcached, Message, RemoteCache}

  setup context do
    start_supervised!({Connections, name: context.test})
    {:ok, client: %Memcached{connections: context.test, port: Daemon.start().port, timeout: 5_000}}
  end

  @question {~c"www.example.test", :a, :in}

  defp answer(ttl, now) do
    record = Message.record(~c"www.example.test", :a, ttl, {192, 0, 2, 1})
    packet = Message.encode(Message.new(response?: true, questions: [@question], answers: [record]))
    {:ok, answer} = Answer.new(packet, @question, now)
    answer
  end

  test "returns what was stored, and a miss for what was not", %{client: client} do
    assert RemoteCache.fetch(client, @question, 0) == :miss
    assert RemoteCache.store(client, @question, answer(10, 0), 0) == :ok
    assert RemoteCache.fetch(client, @question, 0) == {:ok, answer(10, 0)}
    assert RemoteCache.fetch(client, {~c"www.example.test", :mx, :in}, 0) == :miss
  end

  test "does not return what is too old, though memcached still has it", %{client: client} do
    RemoteCache.store(client, @question, answer(10, 0), 0)
    assert {:ok, _answer} = RemoteCache.fetch(client, @question, 9_999)
    assert RemoteCache.fetch(client, @question, 10_000) == :miss
  end

  test "tells memcached how long the answer is still good, so that it can let it go", %{client: client} do
    assert RemoteCache.store(client, @question, answer(100_000, 0), 99_998_000) == :ok
    assert eventually_gone?(client, 500)
  end

  test "does not send what must not be kept", %{client: client} do
    assert RemoteCache.store(client, @question, answer(0, 0), 0) == :ok
    assert RemoteCache.store(client, @question, answer(10, 0), 10_000) == :ok
    assert Memcached.get(client, RemoteCache.key(@question)) == :miss
  end

  test "takes what somebody else left under its key for a miss", %{client: client} do
    for junk <- ["", "junk", <<1, 0::64, "junk">>] do
      assert Memcached.set(client, RemoteCache.key(@question), junk, 60) == :ok
      assert RemoteCache.fetch(client, @question, 0) == :miss
    end
  end

  test "finds a name of any bytes and any length again", %{client: client} do
    long = String.to_charlist(Enum.map_join(1..4, ".", fn _ -> String.duplicate("a", 62) end))

    for name <- [long, ~c"a b.test", [0, 13, 10, 255], ~c"."] do
      assert RemoteCache.fetch(client, {name, :a, :in}, 0) == :miss
      assert RemoteCache.key({name, :a, :in}) =~ ~r/^[\x21-\x7e]{1,250}$/
    end
  end

  test "returns the client's error when memcached is not there", %{client: client} do
    client = %{client | port: 1}
    assert RemoteCache.fetch(client, @question, 0) == {:error, :econnrefused}
    assert RemoteCache.store(client, @question, answer(10, 0), 0) == {:error, :econnrefused}
  end

  # Memcached's clock is its own, and it ticks in seconds.
  defp eventually_gone?(_client, 0), do: false

  defp eventually_gone?(client, tries) do
    Memcached.get(client, RemoteCache.key(@question)) == :miss or
      (Process.sleep(10) == :ok and eventually_gone?(client, tries - 1))
  end
end
