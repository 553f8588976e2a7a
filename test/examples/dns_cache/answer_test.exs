# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.AnswerTest do
  use ExUnit.Case, async: true

  alias DnsCache.{Answer, Message, Query}

  @name ~c"www.example.test"
  @question {@name, :a, :in}
  @soa {~c"ns.test", ~c"admin.test", 1, 2, 3, 4, 60}
  @week 7 * 24 * 60 * 60

  defp packet(fields), do: Message.encode(Message.new([response?: true, questions: [@question]] ++ fields))

  defp answer!(fields, now \\ 0) do
    {:ok, answer} = Answer.new(packet(fields), @question, now)
    answer
  end

  defp reply!(answer, now, question \\ @question) do
    packet = Answer.reply(answer, %Query{id: 77, recurse?: true, question: question}, now)
    {:ok, message} = Message.decode(packet)
    message
  end

  defp a(ttl, name \\ @name), do: Message.record(name, :a, ttl, {192, 0, 2, 1})
  defp ttls(records), do: Enum.map(records, &Message.ttl/1)

  describe "the TTL of an answer" do
    test "is the smallest of its records'" do
      assert answer!(answers: [a(30), a(10)], authority: [Message.record(~c"test", :ns, 20, ~c"ns.test")]).ttl == 10
      assert answer!(answers: [a(30)], authority: [Message.record(~c"test", :ns, 20, ~c"ns.test")]).ttl == 20
    end

    test "is at most a week" do
      assert answer!(answers: [a(@week)]).ttl == @week
      assert answer!(answers: [a(0x7FFFFFFF)]).ttl == @week
    end

    test "is for what does not exist the zone's, or the SOA record's own if that is less" do
      assert answer!(rcode: 3, authority: [Message.record(~c"test", :soa, 3_600, @soa)]).ttl == 60
      assert answer!(authority: [Message.record(~c"test", :soa, 3_600, @soa)]).ttl == 60
      assert answer!(authority: [Message.record(~c"test", :soa, 40, @soa)]).ttl == 40
      alias_of_nothing = [Message.record(@name, :cname, 900, ~c"gone.test")]

      assert answer!(rcode: 3, answers: alias_of_nothing, authority: [Message.record(~c"test", :soa, 900, @soa)]).ttl ==
               60
    end

    test "is 0 for what must not be kept: no SOA record, a failure, a truncated answer" do
      assert answer!(rcode: 3).ttl == 0
      assert answer!(rcode: 2, answers: [a(30)]).ttl == 0
      assert answer!(truncated?: true, answers: [a(30)]).ttl == 0
    end
  end

  describe "a reply" do
    test "has every TTL reduced by the answer's age in whole seconds" do
      answer = answer!([answers: [a(30), a(10)], authority: [Message.record(~c"test", :ns, 25, ~c"ns.test")]], 1_000)
      assert ttls(reply!(answer, 1_000).answers) == [30, 10]
      assert ttls(reply!(answer, 1_999).answers) == [30, 10]
      assert ttls(reply!(answer, 4_000).answers) == [27, 7]
      assert ttls(reply!(answer, 4_000).authority) == [22]
    end

    test "has no TTL below 0, nor one above the record's when the clock that kept it was ahead" do
      answer = answer!([answers: [a(10)]], 100_000)
      assert ttls(reply!(answer, 200_000).answers) == [0]
      assert ttls(reply!(answer, 0).answers) == [10]
    end

    test "carries the query's id and its question as it was written" do
      message = reply!(answer!(answers: [a(10)]), 0, {~c"wWw.eXample.test", :a, :in})
      assert %{id: 77, response?: true, recurse?: true, authoritative?: false} = message
      assert message.questions == [{~c"wWw.eXample.test", :a, :in}]
    end

    test "keeps the code of a name that does not exist" do
      assert %{rcode: 3, answers: []} =
               reply!(answer!(rcode: 3, authority: [Message.record(~c"test", :soa, 60, @soa)]), 0)
    end

    test "that would be too large for some clients is truncated" do
      records = for n <- 1..40, do: a(10, ~c"n#{n}.test")
      assert %{truncated?: true, answers: []} = reply!(answer!(answers: records), 0)
    end
  end

  describe "a packet" do
    test "that answers another question, is a query, or is no message, is no answer" do
      others = [[questions: [{~c"other.test", :a, :in}]], [questions: []], [response?: false], [opcode: :status]]
      for fields <- others, do: assert(Answer.new(packet(fields), @question, 0) == :error)
      assert Answer.new("", @question, 0) == :error
      assert Answer.new(binary_part(packet(answers: [a(10)]), 0, 40), @question, 0) == :error
    end

    test "changed at any byte is an error or an answer that can be served and kept" do
      records = [a(10), Message.record(@name, :mx, 5, {1, ~c"x.test"}), Message.record(@name, :naptr, 5, naptr())]
      packet = packet(answers: records, authority: [Message.record(~c"test", :soa, 60, @soa)])

      for place <- 0..(byte_size(packet) - 1), byte <- [0, 1, 41, 192, 255] do
        <<before::binary-size(place), _byte, rest::binary>> = packet

        with {:ok, answer} <- Answer.new(<<before::binary, byte, rest::binary>>, @question, 0) do
          assert byte_size(Answer.reply(answer, %Query{id: 1, recurse?: true, question: @question}, 0)) <= 512
          assert {:ok, ^answer} = answer |> Answer.to_binary() |> Answer.from_binary(@question)
        end
      end
    end

    defp naptr, do: {1, 2, ~c"u", ~c"sip", ~c"!a!b!", ~c"x.test"}
  end

  describe "an answer as bytes" do
    test "comes back as it was" do
      answer = answer!([answers: [a(10)]], 123_456)
      assert answer |> Answer.to_binary() |> Answer.from_binary(@question) == {:ok, answer}
    end

    test "is an error if it was written by something else or answers another question" do
      bytes = Answer.to_binary(answer!(answers: [a(10)]))
      assert Answer.from_binary(bytes, {~c"other.test", :a, :in}) == :error

      for junk <- ["", "junk", <<1>>, <<1, 0::64>>, <<2>> <> bytes],
          do: assert(Answer.from_binary(junk, @question) == :error)
    end
  end
end
