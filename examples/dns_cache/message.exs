defmodule DnsCache.Message do
  @moduledoc """
  DNS messages as maps, by the codec that OTP's own resolver uses.

  The codec is not part of OTP's documentation, so nothing else in the example calls it. Records stay as it made them; they
  are looked at by `type/1` and `ttl/1`.
  """

  @empty %{
    id: 0,
    response?: false,
    opcode: :query,
    authoritative?: false,
    truncated?: false,
    recurse?: true,
    rcode: 0,
    questions: [],
    answers: [],
    authority: [],
    additional: []
  }

  @type question :: {name :: charlist(), type :: atom() | integer(), class :: atom() | integer()}
  @type rr :: tuple()
  @type t :: %{
          id: 0..0xFFFF,
          response?: boolean(),
          opcode: atom() | integer(),
          authoritative?: boolean(),
          truncated?: boolean(),
          recurse?: boolean(),
          rcode: 0..15,
          questions: [question()],
          answers: [rr()],
          authority: [rr()],
          additional: [rr()]
        }

  @doc "Returns a message with these fields; without any, an empty query."
  @spec new(keyword()) :: t()
  def new(fields), do: struct_like!(@empty, fields)

  @doc "Returns what a packet says, or `:error` if it says nothing sensible."
  @spec decode(binary()) :: {:ok, t()} | :error
  def decode(packet) do
    case :inet_dns.decode(packet) do
      {:ok, message} -> {:ok, message |> :inet_dns.msg() |> to_map() |> check!()}
      {:error, _reason} -> decode_truncated(packet)
    end
  rescue
    # The codec raises on some malformed packets instead of returning an error.
    _exception -> :error
  end

  # From OTP 27 on the codec refuses a message that says that it is truncated and yet has all the records that it counts,
  # which is what every server sends (RFC 2181).
  defp decode_truncated(<<id_and_flags::22, 1::1, rest::bits>>) do
    with {:ok, message} <- decode(<<id_and_flags::22, 0::1, rest::bits>>), do: {:ok, %{message | truncated?: true}}
  end

  defp decode_truncated(_packet), do: :error

  # It also reads a few that it can not write, which are of no use here.
  defp check!(message) do
    _packet = encode(message)
    message
  end

  @doc "Returns a message as a packet."
  @spec encode(t()) :: binary()
  def encode(message) do
    :inet_dns.encode(
      :inet_dns.make_msg(
        header: header(message),
        qdlist: for({name, type, class} <- message.questions, do: query(name, type, class)),
        anlist: message.answers,
        nslist: message.authority,
        arlist: message.additional
      )
    )
  end

  @doc "Returns a record of class `:in`."
  @spec record(charlist(), atom(), non_neg_integer(), term()) :: rr()
  def record(name, type, ttl, data), do: :inet_dns.make_rr(domain: name, type: type, class: :in, ttl: ttl, data: data)

  @doc "Returns the type of a record: `:opt` for one that is about the message and has no TTL."
  @spec type(rr()) :: atom() | integer()
  def type(record), do: :inet_dns.rr(record, :type)

  @doc "Returns for how many seconds a record may be kept."
  @spec ttl(rr()) :: non_neg_integer()
  def ttl(record), do: :inet_dns.rr(record, :ttl)

  @doc "Returns what a record says about its name."
  @spec data(rr()) :: term()
  def data(record), do: :inet_dns.rr(record, :data)

  @doc "Returns the record with another TTL."
  @spec with_ttl(rr(), non_neg_integer()) :: rr()
  def with_ttl(record, ttl), do: :inet_dns.make_rr(record, ttl: ttl)

  @doc "Returns what two questions for the same have in common: DNS does not tell upper from lower case."
  @spec key(question()) :: {binary(), atom() | integer(), atom() | integer()}
  def key({name, type, class}), do: {name |> :erlang.list_to_binary() |> String.downcase(:ascii), type, class}

  defp to_map(sections) do
    header = :inet_dns.header(sections[:header])

    new(
      id: header[:id],
      response?: header[:qr],
      opcode: header[:opcode],
      authoritative?: header[:aa],
      truncated?: header[:tc],
      recurse?: header[:rd],
      rcode: header[:rcode],
      questions: Enum.map(sections[:qdlist], &question/1),
      answers: sections[:anlist],
      authority: sections[:nslist],
      additional: sections[:arlist]
    )
  end

  defp question(query) do
    [name, type, class] = :inet_dns.dns_query(query, [:domain, :type, :class])
    {name, type, class}
  end

  defp header(message) do
    :inet_dns.make_header(
      id: message.id,
      qr: message.response?,
      opcode: message.opcode,
      aa: message.authoritative?,
      tc: message.truncated?,
      rd: message.recurse?,
      ra: message.response?,
      rcode: message.rcode
    )
  end

  defp query(name, type, class), do: :inet_dns.make_dns_query(domain: name, type: type, class: class)

  # Raises for a field that a message has not.
  defp struct_like!(map, fields), do: Enum.reduce(fields, map, fn {field, value}, map -> %{map | field => value} end)
end
