defmodule DnsCache.Query do
  @moduledoc """
  What a client asked, or why it is not answered: everything that arrives is looked at here first.

    * a query with one question is taken
    * a query that can not be read, or asks for what a forwarder does not do, is rejected with an error
    * a response, and what is too short to be a message, is ignored: answering those lets two servers talk for ever
  """

  alias DnsCache.Message

  @format_error 1
  @not_implemented 4

  defstruct [:id, :recurse?, :question]

  @type t :: %__MODULE__{id: 0..0xFFFF, recurse?: boolean(), question: Message.question()}

  @doc "Returns the query in a packet, the packet that rejects it, or `:ignore`."
  @spec parse(binary()) :: {:ok, t()} | {:reject, binary()} | :ignore
  def parse(<<_id::16, 1::1, _rest::bits>>), do: :ignore

  def parse(<<_header::binary-size(12), _rest::binary>> = packet) do
    case Message.decode(packet) do
      {:ok, %{opcode: :query, questions: [question]} = message} ->
        {:ok, %__MODULE__{id: message.id, recurse?: message.recurse?, question: question}}

      {:ok, %{opcode: opcode}} when opcode != :query ->
        {:reject, rejection(packet, @not_implemented)}

      _malformed ->
        {:reject, rejection(packet, @format_error)}
    end
  end

  def parse(_too_short), do: :ignore

  # A header alone, made from the bits of the query's: the rest of it may be unreadable.
  defp rejection(<<id::16, 0::1, opcode::4, _aa_tc::2, rd::1, _rest::bits>>, rcode),
    do: <<id::16, 1::1, opcode::4, 0::2, rd::1, 1::1, 0::3, rcode::4, 0::64>>
end
