defmodule DnsCache.Answer do
  @moduledoc """
  What a server answered, and when: an answer grows old, and what is served of it says so.

  Its `ttl` is the smallest of its records', for a name or type that does not exist that of the zone's SOA record
  (RFC 2308). It is 0 for an answer that must not be kept. Times are milliseconds since 1970, and arguments: no function
  here reads a clock.
  """

  alias DnsCache.{Message, Query}

  @no_error 0
  @server_failure 2
  @no_such_name 3

  # A record may say 68 years. A week is what RFC 8767 advises, and memcached takes more than 30 days for a date.
  @longest_ttl 7 * 24 * 60 * 60

  # What every client takes (RFC 1035).
  @largest_packet 512

  @format 1

  @enforce_keys [:message, :ttl, :born_at]
  defstruct [:message, :ttl, :born_at]

  @type t :: %__MODULE__{message: Message.t(), ttl: non_neg_integer(), born_at: integer()}

  @doc "Returns what a server's packet answers to the question, or `:error` if it is no answer to it."
  @spec new(binary(), Message.question(), integer()) :: {:ok, t()} | :error
  def new(packet, question, now) do
    with {:ok, %{response?: true, opcode: :query, questions: [echo]} = message} <- Message.decode(packet),
         true <- Message.key(echo) == Message.key(question) do
      message = without_options(message)
      {:ok, %__MODULE__{message: message, ttl: ttl(message), born_at: now}}
    else
      _no_answer -> :error
    end
  end

  @doc "Returns whether the answer may be served, and not only once."
  @spec fresh?(t(), integer()) :: boolean()
  def fresh?(answer, now), do: age(answer, now) < answer.ttl

  @doc "Returns for how many seconds more the answer may be kept."
  @spec time_left(t(), integer()) :: integer()
  def time_left(answer, now), do: answer.ttl - age(answer, now)

  @doc "Returns the packet that answers the query now: each TTL is less by the seconds that the answer was kept."
  @spec reply(t(), Query.t(), integer()) :: binary()
  def reply(answer, query, now) do
    age = age(answer, now)
    aged = fn records -> Enum.map(records, &Message.with_ttl(&1, max(Message.ttl(&1) - age, 0))) end
    %{answers: answers, authority: authority, additional: additional} = answer.message

    query
    |> response(answer.message.rcode, answer.message.truncated?)
    |> Map.merge(%{answers: aged.(answers), authority: aged.(authority), additional: aged.(additional)})
    |> encode_to_fit()
  end

  @doc "Returns the packet that says that there is no answer to be had."
  @spec failure(Query.t()) :: binary()
  def failure(query), do: query |> response(@server_failure, false) |> Message.encode()

  @doc "Returns the answer as a cache outside of this machine keeps it."
  @spec to_binary(t()) :: binary()
  def to_binary(answer), do: <<@format, answer.born_at::64, Message.encode(answer.message)::binary>>

  @doc "Returns the answer to the question in what `to_binary/1` made, or `:error` if something else made it."
  @spec from_binary(binary(), Message.question()) :: {:ok, t()} | :error
  def from_binary(<<@format, born_at::64, packet::binary>>, question), do: new(packet, question, born_at)
  def from_binary(_other, _question), do: :error

  # The clock of whoever kept the answer may be ahead of ours.
  defp age(answer, now), do: max(div(now - answer.born_at, 1_000), 0)

  defp ttl(%{truncated?: true}), do: 0

  defp ttl(%{rcode: rcode} = message) when rcode in [@no_error, @no_such_name] do
    negative = for record <- message.authority, minimum <- soa_minimum(record), do: minimum
    ttls = Enum.map(message.answers ++ message.authority ++ message.additional, &Message.ttl/1)
    if message.answers == [] and negative == [], do: 0, else: Enum.min([@longest_ttl | negative ++ ttls])
  end

  defp ttl(_failure), do: 0

  defp soa_minimum(record) do
    case {Message.type(record), Message.data(record)} do
      {:soa, {_server, _admin, _serial, _refresh, _retry, _expire, minimum}} -> [minimum]
      _other -> []
    end
  end

  # The record that is about the message, between that server and us.
  defp without_options(message) do
    for section <- [:answers, :authority, :additional], reduce: message do
      message -> Map.update!(message, section, fn records -> Enum.reject(records, &(Message.type(&1) == :opt)) end)
    end
  end

  defp response(query, rcode, truncated?) do
    Message.new(
      id: query.id,
      response?: true,
      recurse?: query.recurse?,
      rcode: rcode,
      truncated?: truncated?,
      questions: [query.question]
    )
  end

  defp encode_to_fit(message) do
    case Message.encode(message) do
      packet when byte_size(packet) <= @largest_packet -> packet
      _too_large -> Message.encode(%{message | truncated?: true, answers: [], authority: [], additional: []})
    end
  end
end
