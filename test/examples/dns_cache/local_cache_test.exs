# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.LocalCacheTest do
  use ExUnit.Case, async: true

  alias DnsCache.{Answer, LocalCache, Message}

  @question {~c"www.example.test", :a, :in}

  setup context do
    start_supervised!({LocalCache, name: context.test, size: 3})
    {:ok, cache: context.test}
  end

  defp answer(question, ttl, now) do
    {name, type, _class} = question
    record = Message.record(name, type, ttl, {192, 0, 2, 1})
    packet = Message.encode(Message.new(response?: true, questions: [question], answers: [record]))
    {:ok, answer} = Answer.new(packet, question, now)
    answer
  end

  defp store(cache, name, ttl, now) do
    question = {name, :a, :in}
    :ok = LocalCache.store(cache, question, answer(question, ttl, now), now)
  end

  defp kept?(cache, name, now), do: match?({:ok, _answer}, LocalCache.fetch(cache, {name, :a, :in}, now))

  test "returns what was stored, and a miss for what was not", %{cache: cache} do
    answer = answer(@question, 10, 0)
    assert LocalCache.fetch(cache, @question, 0) == :miss
    assert LocalCache.store(cache, @question, answer, 0) == :ok
    assert LocalCache.fetch(cache, @question, 0) == {:ok, answer}
    assert LocalCache.hits(cache) == 1
  end

  test "takes names in upper and in lower case for the same, and types for different ones", %{cache: cache} do
    store(cache, ~c"www.example.test", 10, 0)
    assert kept?(cache, ~c"WWW.Example.TEST", 0)
    assert LocalCache.fetch(cache, {~c"www.example.test", :aaaa, :in}, 0) == :miss
  end

  test "keeps an answer for the TTL of its record and not a millisecond longer", %{cache: cache} do
    store(cache, ~c"a.test", 10, 5_000)
    assert kept?(cache, ~c"a.test", 14_999)
    refute kept?(cache, ~c"a.test", 15_000)
  end

  test "does not keep an answer whose TTL is 0", %{cache: cache} do
    store(cache, ~c"a.test", 0, 0)
    assert LocalCache.count(cache) == 0
  end

  test "takes the newer answer to the same question", %{cache: cache} do
    store(cache, ~c"a.test", 10, 0)
    store(cache, ~c"a.test", 10, 8_000)
    assert LocalCache.count(cache) == 1
    assert kept?(cache, ~c"a.test", 17_999)
  end

  test "never holds more than its size, and lets go what expires first", %{cache: cache} do
    store(cache, ~c"long.test", 100, 0)
    store(cache, ~c"short.test", 5, 0)
    store(cache, ~c"longer.test", 200, 0)
    store(cache, ~c"new.test", 50, 0)

    assert LocalCache.count(cache) == 3
    refute kept?(cache, ~c"short.test", 0)
    for name <- [~c"long.test", ~c"longer.test", ~c"new.test"], do: assert(kept?(cache, name, 0))
  end

  test "stays bounded under many names", %{cache: cache} do
    for n <- 1..1_000, do: store(cache, ~c"n#{n}.test", :rand.uniform(100), n)
    assert LocalCache.count(cache) == 3
  end

  test "lets nothing go when a full cache is told a newer answer to what it knows", %{cache: cache} do
    for name <- [~c"a.test", ~c"b.test", ~c"c.test"], do: store(cache, name, 10, 0)
    store(cache, ~c"c.test", 20, 0)
    for name <- [~c"a.test", ~c"b.test", ~c"c.test"], do: assert(kept?(cache, name, 0))
  end
end
